"""The Spark session of a command: local by default, a cluster by its master's address, or spark-submit's."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf
from pyspark.sql import SparkSession

from analytics import jvm

#: Wanted in every session, embedded, on a cluster and under spark-submit.
SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    # Segments are dense: at 19 bytes an event the default of 128 MiB would be 7 M events in one task.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def make_session(
    master: str | None = None, conf: Mapping[str, str] | None = None, events: int | None = None
) -> SparkSession:
    """The session of this process; `conf` wins over everything that is set here.

    `events` is how many events will be read; it decides the number of shuffle partitions. A session that the
    process has already (a notebook's, a test's) is used as it is, with `conf` applied to it.
    """
    chosen = dict(conf or {})
    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in chosen.items():
            active.conf.set(key, value)
        return active
    wanted = dict(SQL_SETTINGS)
    wanted["spark.sql.shuffle.partitions"] = str(
        max(2 * (os.cpu_count() or 1), math.ceil((events or 0) / 1_000_000))
    )
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        given = SparkConf()
        wanted = {key: value for key, value in wanted.items() if not given.contains(key)}
    else:
        jvm.find()
        os.environ["PYSPARK_PYTHON"] = sys.executable
        wanted |= {
            "spark.master": master or "local[*]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
    session = SparkSession.builder.config(map=wanted | chosen).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
