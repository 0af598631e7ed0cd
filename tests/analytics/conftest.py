"""One Spark session for all tests of the analytics; without the extra they skip, and say why."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = ("pyspark", "pyarrow", "pandas", "numpy")


def why_not() -> str | None:
    """What is missing for tests that need Spark, or None."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"needs pubsubd[analytics]: no {', '.join(missing)}"
    from analytics import jvm
    from analytics.errors import UsageError

    try:
        jvm.find()
    except UsageError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Small and quick to start: two cores, interpreted plans, the JVM's quick compiler, no adaptive plans."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests of pubsubd analytics")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.catalogImplementation", "in-memory")
        .getOrCreate()
    )
    yield session
    session.stop()
