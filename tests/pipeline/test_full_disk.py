"""A disk full to the last byte, under a lake or under checkpoints: a stage waits and loses nothing."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from ottla.pipeline import lake, stage, topic
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.running.causes import append_error
from ottla.pipeline.running.progress import Board
from ottla.pipeline.running.status import StatusFiles
from pipeline.pipeline_runs import ID, copy, ids, running, until, write
from pipeline.stage_runs import StageRuns
from small_file_system import small_file_system

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.in_process import InProcessBroker

pytestmark = pytest.mark.timeout(300)

MB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "small", 8) as folder:
        yield folder


def fill(folder: Path) -> Path:
    """A file that takes all the space there is."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MB, 4096, 1):
            try:
                while file.write(bytes(size)):
                    continue
            except OSError as full:
                assert full.errno == errno.ENOSPC
    assert os.statvfs(folder).f_bavail == 0
    return ballast


@pytest.mark.slow
def test_a_full_disk_under_a_lake(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path, small: Path
) -> None:
    runs = StageRuns(spark, broker, tmp_path)
    source, shore = runs.name("in"), small / "lake"

    @stage(topic(source, json=ID), to=lake(str(shore)))
    def kept(records: DataFrame) -> DataFrame:
        return records

    def in_the_lake() -> list[int]:
        if not any(shore.glob("*.parquet")):
            return []
        return sorted(ds.dataset(shore, format="parquet").to_table()["id"].to_pylist())

    with running(runs, kept) as run:
        write(runs, source, 1, 2, 3)
        until(lambda: in_the_lake() == [1, 2, 3], "the first rows")
        ballast = fill(small)
        write(runs, source, 4, 5, 6)
        until(lambda: run["kept"].restarts >= 2, "two attempts")
        assert "No space left on device" in run["kept"].error
        assert in_the_lake() == [1, 2, 3], "readers of the lake see the earlier rows, complete"
        ballast.unlink()
        until(lambda: len(in_the_lake()) == 6, "the rows that had to wait")
        write(runs, source, 7)
        until(lambda: len(in_the_lake()) == 7, "the next row")
    assert in_the_lake() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_a_full_disk_under_the_checkpoints(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path, small: Path
) -> None:
    runs = StageRuns(spark, broker, small)
    source, end = runs.name("in"), runs.name("out", None)
    with running(runs, copy(source, end, "copied")) as run:
        write(runs, source, 1, 2, 3)
        until(lambda: run["copied"].rows == 3, "the first batch, written down as done")
        ballast = fill(small)
        write(runs, source, 4, 5, 6)
        until(lambda: run["copied"].restarts >= 2, "two attempts")
        assert "No space left on device" in run["copied"].error
        ballast.unlink()
        until(lambda: ids(runs, end) == [1, 2, 3, 4, 5, 6], "the records that had to wait")
        write(runs, source, 7)
        until(lambda: ids(runs, end) == [1, 2, 3, 4, 5, 6, 7], "the next record")


def test_notes_about_a_stage_wait_for_a_disk_that_takes_them(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the trace of a failure nor the status of a stage is worth an end of the stage."""
    checkpoints = Checkpoints(small / "checkpoints")
    checkpoints.stage("s").write_json("something", {})
    board = Board(["s"], time.monotonic)
    status = StatusFiles(checkpoints, board)
    ballast = fill(small)
    status._write(final=True)
    status._write(final=True)
    append_error(str(checkpoints.stage("s")), "Traceback ...")
    said = [record.message for record in caplog.records]
    assert len(said) == 2, "once for each"
    assert all("No space left on device" in each for each in said)
    ballast.unlink()
    status._write(final=True)
    append_error(str(checkpoints.stage("s")), "Traceback ...")
    assert checkpoints.stage("s").read_json("status.json")["stage"] == "s"
    assert "Traceback" in (small / "checkpoints" / "s" / "errors.log").read_text()
