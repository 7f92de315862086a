"""A checkpoint on a disk that loses what was not synced: the lake still has every row once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from ottla.pipeline import lake, stage, topic
from ottla.pipeline.building import BuiltStage
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.durability import SparkFiles, mend
from ottla.pipeline.running.loading import Pipeline
from ottla.pipeline.running.runner import Outcome, Runner
from pipeline.pipeline_runs import ID, write
from pipeline.stage_runs import StageRuns
from pipeline.test_checkpoints import give_spark_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.in_process import InProcessBroker


class LosesUnsynced:
    """Knows which files below a folder would survive a loss of power: synced, under a synced name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}
        self._fsync = os.fsync
        self.count = 0
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self.count += 1
        found = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self._names[found.st_ino] = {each.name for each in path.iterdir()}
        else:
            self._files[found.st_ino] = found.st_size

    def lose(self, folder: Path, *, emptied: bool) -> list[str]:
        """As after a loss of power: files that were not synced are gone, or are there and empty."""
        lost = []
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            inside = path.name in self._names.get(path.parent.stat().st_ino, set())
            if not inside or self._files.get(path.stat().st_ino) != path.stat().st_size:
                lost.append(str(path.relative_to(folder)))
                path.write_bytes(b"") if emptied else path.unlink()
        return lost


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[LosesUnsynced]:
    yield LosesUnsynced(monkeypatch)


def in_the_lake(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder, format="parquet").to_table()["id"].to_pylist())


@pytest.mark.timeout(300)
def test_a_machine_crash_neither_loses_nor_duplicates_rows_of_a_lake(
    spark: SparkSession,
    broker: InProcessBroker,
    tmp_path: Path,
    disk: LosesUnsynced,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = StageRuns(spark, broker, tmp_path)
    source, shore = runs.name("in"), tmp_path / "lake"
    checkpoint = tmp_path / "checkpoints" / "kept" / "spark"

    @stage(topic(source, json=ID, options={"maxOffsetsPerTrigger": 3}), to=lake(str(shore)))
    def kept(records: DataFrame) -> DataFrame:
        return records.dropDuplicates(["id"])

    def run() -> Outcome:
        pipeline = Pipeline.load([kept], name=runs.prefix)
        return Runner(pipeline, runs.spark, runs.context(), attempts=1).run(once=True)

    def crash_after(self: BuiltStage, frame: DataFrame, batch_id: int) -> None:
        whole(self, frame, batch_id)
        if batch_id == last:
            raise RuntimeError("the power went out")

    whole = BuiltStage.write_batch
    monkeypatch.setattr(BuiltStage, "write_batch", crash_after)
    write(runs, source, 1, 2, 3, 4, 5)
    last = 1
    assert run().failed
    assert in_the_lake(shore) == [1, 2, 3, 4, 5]
    # Dropping state of the running Spark, which a new process would not have either.
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    lost = disk.lose(checkpoint, emptied=True)
    assert "commits/0" in lost
    write(runs, source, 2, 6, 7, 8)
    last = 2
    assert run().failed
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    assert in_the_lake(shore) == [1, 2, 3, 4, 5, 6, 7]
    disk.lose(checkpoint, emptied=False)
    last = -1
    write(runs, source, 8, 1, 9)
    assert not run().failed
    assert in_the_lake(shore) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_only_new_files_are_synced(tmp_path: Path, disk: LosesUnsynced) -> None:
    folder = Checkpoints(tmp_path).stage("s")
    give_spark_checkpoint(folder)
    root = Path(folder.spark_checkpoint)
    (root / "state" / "0" / "1").mkdir(parents=True)
    (root / "state" / "0" / "1" / "1.delta").write_text("state")
    files = SparkFiles(root)
    files.sync()
    lost = disk.lose(root, emptied=True)
    assert [name for name in lost if not name.endswith(".crc")] == ["commits/0", "commits/1"]
    before = disk.count
    files.sync()
    assert disk.count == before
    (root / "state" / "0" / "1" / "2.delta").write_text("more state")
    (root / "offsets" / "0").unlink()
    files.sync()
    assert disk.count == before + 2, "the file and its folder"
    (root / "temporary").write_text("state of a batch that runs again")
    (root / "temporary").replace(root / "state" / "0" / "1" / "2.delta")
    files.sync()
    assert disk.lose(root / "state", emptied=True) == []


@pytest.mark.parametrize(
    "garbage", [b"", b"v1\n", b'v1\n{"batchWatermarkMs":0}\n', b'v1\n{"a":1}\n{"clicks":{"0']
)
def test_unreadable_ends_of_spark_logs_are_removed(tmp_path: Path, garbage: bytes) -> None:
    folder = Checkpoints(tmp_path).stage("s")
    give_spark_checkpoint(folder, batches=4, committed=4)
    root = Path(folder.spark_checkpoint)
    for batch in (2, 3):
        (root / "offsets" / str(batch)).write_bytes(garbage)
    assert mend(root) == ["offsets/3", "offsets/2", "commits/2", "commits/3"]
    assert sorted(each.name for each in root.glob("*/[0-9]*")) == ["0", "0", "1", "1"]
    assert mend(root) == []


def test_an_empty_commit_or_checksum_is_removed_and_its_batch_runs_again(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path).stage("s")
    give_spark_checkpoint(folder, batches=3, committed=3)
    root = Path(folder.spark_checkpoint)
    (root / "commits" / "2").write_bytes(b"")
    (root / "offsets" / ".2.crc").write_bytes(b"")
    (root / "metadata").write_bytes(b"")
    folder.mend()
    assert not (root / "commits" / "2").exists()
    assert not (root / "offsets" / ".2.crc").exists()
    assert not (root / "metadata").exists()
    assert (root / "offsets" / ".1.crc").exists()
    last = folder.last_committed()
    assert last is not None
    assert last.batch_id == 1


@pytest.mark.parametrize("gone", [False, True])
def test_incomplete_state_makes_its_batch_run_again(tmp_path: Path, gone: bool) -> None:
    folder = Checkpoints(tmp_path).stage("s")
    give_spark_checkpoint(folder, batches=3, committed=3)
    root = Path(folder.spark_checkpoint)
    for partition in ("0", "1"):
        store = root / "state" / "0" / partition
        store.mkdir(parents=True)
        for version in (1, 2, 3):
            (store / f"{version}.delta").write_text("state")
            (store / f".{version}.delta.crc").write_text("sum")
    folder.mend()
    assert (root / "commits" / "2").exists(), "whole as it is"
    lost = root / "state" / "0" / "1" / "3.delta"
    if gone:
        lost.unlink()
    else:
        lost.write_bytes(b"")
    folder.mend()
    assert not (root / "commits" / "2").exists()
    assert (root / "offsets" / "2").exists()
    left = sorted(str(path.relative_to(root / "state")) for path in root.rglob("*.delta"))
    assert left == ["0/0/1.delta", "0/0/2.delta", "0/1/1.delta", "0/1/2.delta"]


def test_valid_and_missing_checkpoints_are_not_changed(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path).stage("s")
    folder.mend()
    assert not list(tmp_path.iterdir())
    give_spark_checkpoint(folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    folder.mend()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
