"""`reset --replace`: the rows of a stage go from its lake, and come back once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.pipeline.checkpoints import CheckpointError, Checkpoints
from ottla.pipeline.lakes.batches import LakeError, commit_batch
from ottla.pipeline.lakes.compact import alone, compact_lake
from ottla.pipeline.lakes.layout import LakePlace, Writer
from ottla.pipeline.lakes.replacing import plan_replacement, remove_rows
from ottla.pipeline.running.runner import run
from ottla.pipeline.stages import lake, stage, topic
from pipeline.lake_reading import forget_process, leftovers, read, rows_of, stager
from pipeline.pipeline_runs import ID, write
from pipeline.stage_runs import StageRuns
from pipeline.stopping_folder import Steps, every_step, folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.in_process import InProcessBroker

MINE, OTHER = Writer("11111111-aaaa"), Writer("22222222-bbbb")


def fill(path: Path, *writers: Writer) -> None:
    forget_process()
    for writer in writers:
        for batch in range(3):
            # Numbers of batches tell the writers apart in what is read.
            number = batch + 10 * (writer is OTHER)
            commit_batch(LakePlace(path), writer, number, stager(rows_of(number), writer))


def batches_in(path: Path) -> set[int]:
    return {row[0] for row in read(path)} if any(path.rglob("*.parquet")) else set()


def test_only_rows_of_the_given_queries_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    fill(path, MINE, OTHER)
    (path / "somebody.parquet").write_bytes((next(path.rglob("part-222*.parquet"))).read_bytes())
    plan = plan_replacement(str(path), [MINE.query_id])
    assert remove_rows(str(path), [MINE.query_id]) == len(plan.files) > 0
    assert batches_in(path) == {10, 11, 12}
    assert (path / "somebody.parquet").exists()
    assert LakePlace(path).last_batches() == {OTHER.name: 12}
    assert leftovers(LakePlace(path)) == []
    assert remove_rows(str(path), [MINE.query_id]) == 0
    assert remove_rows(str(tmp_path / "nowhere"), [MINE.query_id]) == 0


def test_compacted_files_are_removed_only_if_no_other_query_wrote_to_them(tmp_path: Path) -> None:
    alone_there, shared = tmp_path / "alone", tmp_path / "shared"
    fill(alone_there, MINE)
    fill(shared, MINE, OTHER)
    compact_lake(alone_there)
    compact_lake(shared)
    assert list(alone_there.rglob("compacted-*"))
    remove_rows(str(alone_there), [MINE.query_id])
    assert batches_in(alone_there) == set()
    before = sorted(read(shared))
    with pytest.raises(LakeError, match=r"has been compacted, and other queries \(1\) have written to it"):
        remove_rows(str(shared), [MINE.query_id])
    assert sorted(read(shared)) == before


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lake"

    def remove(steps: Steps) -> None:
        for each in tmp_path.iterdir():
            shutil.rmtree(each)
        fill(path, MINE, OTHER)
        remove_rows(LakePlace(folder(path, steps)), [MINE.query_id])

    for _ in every_step(remove):
        remove_rows(str(path), [MINE.query_id])
        assert batches_in(path) == {10, 11, 12}
        assert leftovers(LakePlace(path)) == []


def test_a_reset_replaces_what_all_earlier_queries_of_the_stage_wrote(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    checkpoint = Checkpoints(tmp_path / "checkpoints").stage("clean")

    def begin(query: str) -> None:
        spark = tmp_path / "checkpoints/clean/spark"
        spark.mkdir(parents=True, exist_ok=True)
        (spark / "metadata").write_text(f'{{"id":"{query}"}}')

    begin(MINE.query_id)
    checkpoint.reset("earliest")
    begin(OTHER.query_id)
    fill(path, MINE, OTHER)
    assert checkpoint.queries() == [MINE.query_id, OTHER.query_id]
    with alone(LakePlace(path)), pytest.raises(CheckpointError, match="another compaction"):
        checkpoint.reset("earliest", [str(path)])
    assert checkpoint.starting_options() == {"startingOffsets": "earliest"}  # decided, and finished now
    assert (batches_in(path), checkpoint.queries()) == (set(), [])


@pytest.mark.timeout(300)
def test_a_stage_that_ran_twice_ends_with_each_row_once_after_a_replacement(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    runs = StageRuns(spark, broker, tmp_path)
    source, path = runs.name("in"), tmp_path / "lake"

    def kept(condition: str) -> Callable[..., Any]:
        @stage(topic(source, json=ID), to=lake(path), name="kept")
        def made(records: DataFrame) -> DataFrame:
            return records.where(condition)

        return made

    def once(condition: str) -> list[int]:
        run(
            [kept(condition)],
            name=runs.prefix,
            bootstrap=broker.bootstrap_servers,
            checkpoints=runs.folder / "checkpoints",
            spark=spark,
        )
        return sorted(row.id for row in spark.read.schema(ID).parquet(str(path)).collect())

    checkpoint = runs.context().checkpoints.stage("kept")
    write(runs, source, 1, 2, 3)
    assert once("id > 0") == [1, 2, 3]
    checkpoint.reset("earliest")
    assert once("id > 1") == [1, 2, 2, 3, 3]
    checkpoint.reset("earliest", [str(path)])
    write(runs, source, 4)
    assert once("id > 2") == [3, 4]
