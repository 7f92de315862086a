"""A batch is in a Delta table once, by the table's own log."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from ottla.pipeline.declarations import Lake
from ottla.pipeline.lakes.batches import LakeError, write_lake
from ottla.pipeline.lakes.compact import compact_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end).selectExpr(
        "id", "concat('t', id) text", "date_add(date'2026-01-01', cast(id % 2 as int)) day", "array(id) many"
    )


def ids(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def test_batches_are_added_once_each(tmp_path: Path, spark: SparkSession) -> None:
    target = Lake(str(tmp_path / "table"), ("day",), "delta")
    first = write_lake(frame(spark, 0, 10), target, query_id="q", batch_id=0)
    assert (first.rows, first.done_before) == (10, False)
    write_lake(frame(spark, 10, 20), target, query_id="q", batch_id=1)
    again = write_lake(frame(spark, 10, 20), target, query_id="q", batch_id=1)
    assert (again.rows, again.done_before) == (0, True)
    assert write_lake(frame(spark, 0, 0), target, query_id="q", batch_id=2).files == 0
    write_lake(frame(spark, 20, 25), target, query_id="q", batch_id=3)
    assert ids(target.path) == list(range(25))
    table = DeltaTable(target.path)
    assert table.version() == 2, "an empty batch made a version"
    assert table.metadata().partition_columns == ["day"]
    assert table.transaction_version("q-0") == 3
    rows = table.to_pyarrow_table(columns=["id", "day"]).to_pylist()
    assert {row["day"] for row in rows if row["id"] % 2} == {date(2026, 1, 2)}


def test_another_query_writes_its_own_batches(tmp_path: Path, spark: SparkSession) -> None:
    target = Lake(str(tmp_path / "table"), format="delta")
    for query in ("a", "b"):
        write_lake(frame(spark, 0, 3), target, query_id=query, batch_id=0)
    assert ids(target.path) == sorted([0, 1, 2] * 2)


def test_files_of_an_uncommitted_batch_are_not_read(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Lake(str(tmp_path / "table"), format="delta")
    write_lake(frame(spark, 0, 3), target, query_id="q", batch_id=0)
    with monkeypatch.context() as patched:
        patched.setattr(
            "ottla.pipeline.lakes.delta._commit", lambda *_: (_ for _ in ()).throw(RuntimeError("killed"))
        )
        with pytest.raises(RuntimeError, match="killed"):
            write_lake(frame(spark, 3, 6), target, query_id="q", batch_id=1)
    assert ids(target.path) == [0, 1, 2]
    write_lake(frame(spark, 3, 6), target, query_id="q", batch_id=1)
    assert ids(target.path) == list(range(6))
    table = DeltaTable(target.path)
    orphans = table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=True)
    assert len(orphans) >= 1


def test_an_older_batch_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    target = Lake(str(tmp_path / "table"), format="delta")
    write_lake(frame(spark, 0, 3), target, query_id="q", batch_id=5)
    with pytest.raises(LakeError, match="comes after batch 5"):
        write_lake(frame(spark, 0, 3), target, query_id="q", batch_id=4)


def test_other_columns_or_partitions_than_the_table_has_are_refused(
    tmp_path: Path, spark: SparkSession
) -> None:
    target = Lake(str(tmp_path / "table"), format="delta")
    write_lake(frame(spark, 0, 3), target, query_id="q", batch_id=0)
    with pytest.raises(LakeError, match=r"text: string there, no such column in the stage"):
        write_lake(frame(spark, 0, 3).drop("text"), target, query_id="q", batch_id=1)
    with pytest.raises(LakeError, match=r"id: long there, string in the stage"):
        write_lake(
            frame(spark, 0, 3).selectExpr("string(id) id", "text", "day", "many"),
            target,
            query_id="q",
            batch_id=1,
        )
    with pytest.raises(LakeError, match="is partitioned by"):
        write_lake(frame(spark, 0, 3), Lake(target.path, ("day",), "delta"), query_id="q", batch_id=1)
    assert ids(target.path) == [0, 1, 2]


def test_a_table_compacts_itself(tmp_path: Path, spark: SparkSession) -> None:
    target = Lake(str(tmp_path / "table"), format="delta")
    for batch in range(4):
        write_lake(frame(spark, batch * 5, batch * 5 + 5), target, query_id="q", batch_id=batch)
    done = compact_lake(target.path)
    assert (done.files_before, done.files_after, done.rows) == (8, 1, 20)
    assert len(done.merges[0].names) == 8
    assert compact_lake(target.path).merges == []
    assert ids(target.path) == list(range(20))
    with pytest.raises(LakeError, match="cannot say beforehand"):
        compact_lake(target.path, dry_run=True)


def test_a_missing_package_is_reported_with_what_to_install(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(LakeError, match=r"pip install 'ottla\[delta\]'"):
        write_lake(frame(spark, 0, 3), Lake(str(tmp_path / "t"), format="delta"), query_id="q", batch_id=0)
