"""Progress: a line on a terminal, nothing in a pipe."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from analytics.progress import Progress, Share, duration, time_left

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_is_written_unless_it_is_to_be_shown(capfd: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    progress = Progress(console=console)
    with progress.stage("facts", rows=10), progress.stage("inside"):
        pass

    assert written(console) == ""
    assert capfd.readouterr() == ("", "")
    assert [name for name, _ in progress.durations] == ["inside", "facts"]


def test_a_stage_ends_with_its_rows_and_its_time() -> None:
    console = terminal()
    progress = Progress(shown=True, console=console)
    with progress.stage("facts", rows=1234567), progress.stage("inside"):
        pass
    with progress.stage("audit"):
        pass

    assert "facts" in written(console) and "1,234,567 rows" in written(console)
    assert "audit" in written(console)
    assert "inside" not in written(console), "a stage within a stage has no line of its own"


def test_a_stage_that_fails_says_so_and_lets_the_error_through() -> None:
    console = terminal()
    with pytest.raises(ZeroDivisionError), Progress(shown=True, console=console).stage("facts"):
        _ = 1 / 0

    assert "stopped after" in written(console)


def test_the_share_of_tasks_never_goes_back_and_is_never_whole_before_the_end() -> None:
    share = Share()
    assert share.update(0, 0) == 0
    assert share.update(5, 10) == 0.5
    assert share.update(6, 20) == 0.5, "a later job was found"
    assert share.update(20, 20) == 0.99


def test_the_time_left_follows_from_the_share_that_is_done() -> None:
    assert time_left(30, 0.75) == 10
    assert time_left(30, 0.001) is None
    assert (duration(0.2), duration(75), duration(3720)) == ("1 s", "1 min 15 s", "1 h 02 min")


def test_the_tasks_of_a_stage_are_those_of_its_jobs(spark: SparkSession) -> None:
    from analytics.progress import tasks_of

    context = spark.sparkContext
    context.setJobGroup("ours", "ours")
    spark.range(0, 100, 1, 4).selectExpr("sum(id)").collect()
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets it
    spark.range(0, 100, 1, 3).selectExpr("sum(id)").collect()

    done, total = tasks_of(spark, "ours")
    assert done == total >= 4
    assert tasks_of(spark, "nobody's") == (0, 0)


def test_a_running_stage_shows_the_rows_of_its_finished_tasks(spark: SparkSession) -> None:
    def slowly(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            time.sleep(0.4)
            yield frame

    console = terminal()
    with Progress(spark, shown=True, console=console).stage("facts", rows=1000):
        # Eight tasks on two cores.
        spark.range(0, 8, 1, 8).mapInPandas(slowly, "id bigint").write.format("noop").mode("overwrite").save()

    shown = written(console)
    assert "of 1,000 rows" in shown
    assert " left" in shown
