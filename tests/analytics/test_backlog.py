"""G4 where the journal does not begin at its beginning, or where a part of it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]")

from analytics import backlog
from analytics.backlog import Horizon
from analytics.dimensions import OPEN, Dimensions, Epoch, Setting, Subscription
from analytics.tables import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUB, LAST_SEQ = 7, 900
DIMENSIONS = Dimensions(
    subscriptions={SUB: Subscription(SUB, 1, "s", 0, OPEN, 0, OPEN, (Setting(0),))},
    epochs={SUB: (Epoch(SUB, 1, 0, 0, OPEN, 0, OPEN, 0),)},
)
NAMES = [column.split()[0] for column in SCHEMAS["facts"].split(", ")]

#: The range begins with message 100. What is older may have been delivered in it, or finished, or neither.
FACTS = {
    10: {"partial": True, "deliveries": 0},
    11: {"partial": True, "deliveries": 1},
    12: {"partial": True, "deliveries": 1, "ack_us": 5},
    100: {"deliveries": 1},
    101: {"deliveries": 1, "ack_us": 5},
}


def judged(spark: SparkSession, horizon: Horizon, open_at_end: list[int]) -> set[tuple[str, int]]:
    usual: dict[str, Any] = {"sub_id": SUB, "epoch": 0, "owed": True, "partial": False, "acks": 0}
    rows = [
        tuple((usual | {"message_id": message} | fact).get(name) for name in NAMES)
        for message, fact in FACTS.items()
    ]
    facts = spark.createDataFrame(rows, SCHEMAS["facts"])
    waiting = spark.createDataFrame(
        [(SUB, 0, 102, 3, 0, None, False, True)],
        "sub_id int, epoch int, message_id bigint, pub_us bigint, okey bigint, gone_us bigint, "
        "carried boolean, certain boolean",
    )
    found = backlog.judge(
        backlog.open_messages(facts, waiting, DIMENSIONS),
        spark.createDataFrame([(SUB, message) for message in open_at_end], backlog.SCHEMA),
        facts,
        DIMENSIONS,
        horizon,
        LAST_SEQ,
    ).collect()
    assert {(row.sub_id, row.epoch, row.seq) for row in found} <= {(SUB, 0, LAST_SEQ)}
    return {(row.code, row.message_id) for row in found}


@pytest.mark.slow
def test_what_is_older_than_the_range_is_judged_from_its_first_delivery_on(spark: SparkSession) -> None:
    horizon = Horizon(first_id=100, is_whole=False)
    assert judged(spark, horizon, [10, 11, 50, 100, 102]) == set()
    lost = {("G4_lost", 11), ("G4_lost", 100), ("G4_lost", 102)}
    ghosts = {("G4_ghost", 12), ("G4_ghost", 101), ("G4_ghost", 103)}
    assert judged(spark, horizon, [50, 12, 101, 103]) == lost | ghosts


def test_where_something_is_missing_only_what_is_newer_is_judged(spark: SparkSession) -> None:
    horizon = Horizon(first_id=101, is_whole=False, first_missing_seq=40)
    assert judged(spark, horizon, [50, 12, 101, 103]) == {
        ("G4_lost", 102),
        ("G4_ghost", 101),
        ("G4_ghost", 103),
    }


def test_without_anything_published_after_the_hole_nothing_is_judged(spark: SparkSession) -> None:
    horizon = Horizon(first_id=OPEN, is_whole=False, first_missing_seq=40)
    assert judged(spark, horizon, [50, 12, 101, 103]) == set()
