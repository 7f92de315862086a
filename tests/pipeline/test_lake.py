"""A batch is in the lake once: after crashes at every file operation, re-runs that differ, other queries."""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ottla.pipeline.declarations import Lake
from ottla.pipeline.folders import Folder
from ottla.pipeline.lakes.batches import LakeError, commit_batch, write_lake
from ottla.pipeline.lakes.files import Layout, partition_folder, partition_values, write_files
from ottla.pipeline.lakes.layout import LakePlace, Writer, writer_and_batch
from pipeline.lake_reading import (
    WRITER,
    doubles,
    forget_process,
    leftovers,
    other_files,
    read,
    rows_of,
    stager,
)
from pipeline.stopping_folder import Steps, Stopped, every_step, folder, hdfs_like

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def watched(path: Path, steps: Steps) -> LakePlace:
    return LakePlace(folder(path, steps))


def test_batches_are_plain_files_and_nothing_else_lies_in_the_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for batch in range(3):
        summary = commit_batch(LakePlace(lake), WRITER, batch, stager(rows_of(batch)))
        assert (summary.rows, summary.files, summary.replaced) == (6, 6, 0)
        assert summary.bytes == sum(
            file.stat().st_size for file in lake.rglob(f"part-{WRITER.query_id}-{batch:09d}-0-*.parquet")
        )
    assert sorted(read(lake)) == rows_of(0) + rows_of(1) + rows_of(2)
    assert other_files(lake) == []
    assert leftovers(LakePlace(lake)) == []
    assert sorted(path.name for path in lake.iterdir()) == ["part=p0", "part=p1", "part=p2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lake.ottla", "lake"]
    names = [file.name for file in lake.rglob("*.parquet")]
    assert {writer_and_batch(name) for name in names} == {(WRITER.name, batch) for batch in range(3)}


def test_an_empty_batch_writes_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0)))
    before = sorted(tmp_path.rglob("*.*"))
    assert commit_batch(LakePlace(lake), WRITER, 1, stager([])).files == 0
    assert sorted(tmp_path.rglob("*.*")) == before
    commit_batch(LakePlace(lake), WRITER, 2, stager(rows_of(2)))
    assert sorted(read(lake)) == rows_of(0) + rows_of(2)


def test_a_rerun_replaces_the_first_run_in_all_partition_folders(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0)))
    commit_batch(LakePlace(lake), WRITER, 1, stager(rows_of(1, attempt=0), files=3))
    assert commit_batch(LakePlace(lake), WRITER, 1, stager(rows_of(1, attempt=1), files=1)).replaced == 3
    assert sorted(read(lake)) == rows_of(0) + rows_of(1, attempt=1)
    commit_batch(LakePlace(lake), WRITER, 1, stager([]))
    assert sorted(read(lake)) == rows_of(0), "a re-run without rows left rows of the first run"


def test_a_crash_at_any_file_operation_and_a_re_run_leave_the_batch_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def look() -> None:
        seen = read(lake)
        assert doubles(seen) == []
        assert set(rows_of(0)) <= set(seen) <= set(rows_of(0) + rows_of(1, attempt=0))

    def run(steps: Steps) -> None:
        shutil.rmtree(lake, ignore_errors=True)
        shutil.rmtree(tmp_path / ".lake.ottla", ignore_errors=True)
        forget_process()
        commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0)))
        forget_process()
        steps.watch = look if steps.stop_at is None else None
        commit_batch(watched(lake, steps), WRITER, 1, stager(rows_of(1, attempt=0)))

    run(Steps())
    for at in every_step(run):
        forget_process()
        assert doubles(read(lake)) == []
        commit_batch(LakePlace(lake), WRITER, 1, stager(rows_of(1, attempt=1), files=3))
        assert sorted(read(lake)) == rows_of(0) + rows_of(1, attempt=1), f"stopped at {at}"
        assert leftovers(LakePlace(lake)) == []
        commit_batch(LakePlace(lake), WRITER, 2, stager(rows_of(2)))
        assert sorted(read(lake)) == rows_of(0) + rows_of(1, attempt=1) + rows_of(2), f"stopped at {at}"


def test_crash_after_crash_at_any_two_file_operations(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    first = tmp_path / "after-first-crash"

    def begin(steps: Steps) -> None:
        for each in (lake, tmp_path / ".lake.ottla"):
            shutil.rmtree(each, ignore_errors=True)
        forget_process()
        commit_batch(watched(lake, steps), WRITER, 0, stager(rows_of(0, 0, 1), partitioned=False, files=1))

    def again(steps: Steps) -> None:
        for each in (lake, tmp_path / ".lake.ottla"):
            shutil.rmtree(each, ignore_errors=True)
            if (first / each.name).exists():
                shutil.copytree(first / each.name, each)
        forget_process()
        commit_batch(watched(lake, steps), WRITER, 0, stager(rows_of(0, 1, 1), partitioned=False, files=1))

    for at in every_step(begin):
        shutil.rmtree(first, ignore_errors=True)
        for each in (lake, tmp_path / ".lake.ottla"):
            if each.exists():
                shutil.copytree(each, first / each.name)
        for then in every_step(again):
            forget_process()
            commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0, 2, 2), partitioned=False))
            assert sorted(read(lake)) == rows_of(0, 2, 2), f"stopped at {at}, then at {then}"
            assert leftovers(LakePlace(lake)) == []


def test_a_failed_commit_is_repaired_in_the_same_process(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    place = LakePlace(lake)
    commit_batch(place, WRITER, 0, stager(rows_of(0)))

    def fails(staging: Folder) -> list[Any]:
        stager(rows_of(1))(staging)
        raise RuntimeError("a task failed")

    with pytest.raises(RuntimeError, match="a task failed"):
        commit_batch(place, WRITER, 1, fails)
    assert leftovers(place) != []
    commit_batch(place, WRITER, 1, stager(rows_of(1, attempt=1)))
    assert leftovers(place) == []
    assert sorted(read(lake)) == rows_of(0) + rows_of(1, attempt=1)


def test_repeated_crashes_do_not_grow_the_journal(tmp_path: Path) -> None:
    place = LakePlace(tmp_path / "lake")
    sizes = []
    for attempt in range(12):
        forget_process()
        commit_batch(place, WRITER, 5, stager(rows_of(5, attempt)))
        sizes.append(sum(file.stat().st_size for file in Path(place.notes.path).rglob("*.json")))
    assert max(sizes[2:]) == min(sizes[2:])
    assert sorted(read(tmp_path / "lake")) == rows_of(5, 11)


def test_renames_undone_by_a_power_loss_are_repeated(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    place = LakePlace(lake)
    commit_batch(place, WRITER, 0, stager(rows_of(0)))
    forget_process()
    journal = place.read_journal(WRITER)
    assert journal is not None
    staging = place.staging(WRITER, journal.attempt)
    staging.make()
    for file in journal.files[::2]:
        place.lake.move(file.final, file.staged, staging)
    commit_batch(place, WRITER, 1, stager(rows_of(1)))
    assert sorted(read(lake)) == rows_of(0) + rows_of(1)


def test_another_query_on_the_same_lake_skips_and_replaces_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    other = Writer("99999999-2222-3333-4444-555555555555")
    for writer, attempt in ((WRITER, 0), (other, 1)):
        for batch in range(2):
            commit_batch(LakePlace(lake), writer, batch, stager(rows_of(batch, attempt), writer))
    assert sorted(read(lake)) == sorted(rows_of(0) + rows_of(1) + rows_of(0, 1) + rows_of(1, 1))


def test_two_outputs_of_one_stage_into_one_lake_keep_apart(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    second = Writer(WRITER.query_id, 1)
    for _ in range(2):
        commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0, 0)))
        commit_batch(LakePlace(lake), second, 0, stager(rows_of(0, 1), second))
    assert sorted(read(lake)) == rows_of(0, 0) + rows_of(0, 1)


def test_an_older_batch_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit_batch(LakePlace(lake), WRITER, 4, stager(rows_of(4)))
    with pytest.raises(LakeError, match=r"batch 3 .* comes after batch 4 .*Another driver"):
        commit_batch(LakePlace(lake), WRITER, 3, stager(rows_of(3)))
    assert sorted(read(lake)) == rows_of(4)


def test_files_that_the_driver_does_not_see_fail_the_batch_before_it_is_decided(tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def on_another_disk(staging: Folder) -> list[Any]:
        files = stager(rows_of(0))(staging)
        staging.remove(files[-1].staged)
        return files

    with pytest.raises(LakeError, match="must see the same storage"):
        commit_batch(LakePlace(lake), WRITER, 0, on_another_disk)
    assert LakePlace(lake).read_journal(WRITER) is None
    assert list(lake.rglob("*.parquet")) == []


def test_notes_are_inside_the_lake_if_it_has_a_notes_folder_or_is_a_bucket(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    lake = parent / "lake"
    (lake / "_ottla").mkdir(parents=True)
    commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0)))
    assert sorted(path.name for path in parent.iterdir()) == ["lake"]
    assert sorted(read(lake)) == rows_of(0), "pyarrow reads the notes"
    root = Folder.on(hdfs_like(tmp_path)._files, "bucket")
    assert LakePlace(root).notes.path == "bucket/_ottla"


def test_a_file_system_without_atomic_replace_is_supported(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()

    def place(steps: Steps) -> LakePlace:
        return LakePlace(hdfs_like(lake, type(folder(lake, steps))))

    commit_batch(place(Steps()), WRITER, 0, stager(rows_of(0)))
    for at in every_step(lambda steps: commit_batch(place(steps), WRITER, 1, stager(rows_of(1)))):
        forget_process()
        attempt = at + 1
        commit_batch(place(Steps()), WRITER, 1, stager(rows_of(1, attempt)))
        assert sorted(read(lake)) == rows_of(0) + rows_of(1, attempt)
        forget_process()


def test_a_reader_beside_a_writer_never_sees_a_row_twice_nor_half_a_file(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    commit_batch(LakePlace(lake), WRITER, 0, stager(rows_of(0)))
    over = threading.Event()
    wrong: list[object] = []
    reads = [0]

    def watch() -> None:
        whole = set(rows_of(0))
        while not over.is_set():
            try:
                seen = read(lake)
            except FileNotFoundError:
                continue  # listed before a re-run replaced it; a reader tries again
            reads[0] += 1
            if doubles(seen) or not whole <= set(seen):
                wrong.append(seen)

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        final = rows_of(0)
        batch = 1
        while batch < 40 or reads[0] < 20:
            attempts = rng.choice([1, 1, 1, 2, 3])
            for attempt in range(attempts):
                commit_batch(LakePlace(lake), WRITER, batch, stager(rows_of(batch, attempt)))
            final += rows_of(batch, attempts - 1)
            batch += 1
    finally:
        over.set()
        reader.join()
    assert wrong == []
    assert sorted(read(lake)) == final


# Files.


def test_partition_folders_are_named_as_spark_names_them() -> None:
    values = ("a/b=c%", "ü {x}", None, "")
    text = partition_folder(("k", "n o", "z", "e"), values)
    hive = "__HIVE_DEFAULT_PARTITION__"
    assert text == f"k=a%2Fb%3Dc%25/n o=ü %7Bx}}/z={hive}/e={hive}"
    assert partition_values(text) == {"k": "a/b=c%", "n o": "ü {x}", "z": None, "e": None}
    assert partition_values("") == {}


def test_rows_reach_their_folder_in_order_over_many_batches_and_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipeline.lakes.files.OPEN_FILES", 3)
    monkeypatch.setattr("ottla.pipeline.lakes.files.GATHERED_BYTES", 2_000)
    rng = random.Random(7)
    rows: list[dict[str, Any]] = [
        {"n": n, "a": rng.choice("xyz"), "b": rng.choice(["1", "2", None])} for n in range(5_000)
    ]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 97]) for at in range(0, len(rows), 97)]
    files = write_files(batches, Folder(tmp_path), Layout("t-", (("a", "a"), ("b", "b"))))
    found: dict[str, list[int]] = {}
    for file in files:
        table = pq.read_table(tmp_path / file.staged)
        assert table.column_names == ["n"]
        assert (table.num_rows, (tmp_path / file.staged).stat().st_size) == (file.rows, file.bytes)
        found.setdefault(file.folder, []).extend(table["n"].to_pylist())
    expected: dict[str, list[int]] = {}
    for row in rows:
        expected.setdefault(partition_folder("ab", (row["a"], row["b"])), []).append(row["n"])
    assert found == expected
    assert len(files) > 9, "no file was ever closed to open another"


def test_a_file_that_grew_large_is_followed_by_another_and_small_batches_share_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pa.RecordBatch.from_pydict({"text": [os.urandom(500).hex() for _ in range(100)]})
    assert len(write_files([batch] * 20, Folder(tmp_path), Layout("a-"))) == 1
    assert pq.ParquetFile(next(tmp_path.iterdir())).num_row_groups == 1
    monkeypatch.setattr("ottla.pipeline.lakes.files.ROW_GROUP_BYTES", 200_000)
    files = write_files([batch] * 20, Folder(tmp_path), Layout("b-", file_bytes=300_000))
    assert len(files) > 2
    assert sum(file.rows for file in files) == 2_000


# With Spark.


def test_spark_rows_of_every_kind_come_back_the_same(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.range(10).selectExpr(
        "id",
        "cast(id as int) i",
        "concat('t', id) `a text`",
        "encode('b', 'utf-8') raw",
        "id / 4 d",
        "cast(id as decimal(12, 3)) m",
        "date_add(date'2026-01-01', cast(id as int)) day",
        "timestamp'2026-01-01 00:00:00.123456' at",
        "array(struct(id as x, null as y)) nested",
        "map('k', id) pairs",
        "id % 2 = 0 flag",
        "if(id > 5, null, cast(id % 2 as int)) odd",
    )
    target = Lake(str(tmp_path / "lake"), ("odd", "day"))
    write_lake(frame, target, query_id="q", batch_id=0)
    back = spark.read.parquet(target.path).select(frame.columns)
    assert sorted(back.collect(), key=lambda row: row.id) == sorted(frame.collect(), key=lambda row: row.id)
    table = ds.dataset(target.path, partitioning="hive").to_table().sort_by("id")
    first = table.slice(3, 1).to_pylist()[0]
    assert first["m"] == Decimal("3.000")
    assert first["at"] == datetime.datetime(2026, 1, 1, 0, 0, 0, 123456, datetime.UTC)
    assert (first["odd"], first["day"], first["nested"]) == (1, "2026-01-04", [{"x": 3, "y": None}])
    schema = pq.read_schema(next(Path(target.path).rglob("*.parquet")))
    assert all(field.nullable for field in schema)
    assert other_files(tmp_path / "lake") == []


def test_a_stream_that_runs_its_last_batch_again_leaves_it_once(tmp_path: Path, spark: SparkSession) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    target = Lake(str(tmp_path / "lake"), ("rest",), options={"compression": "zstd"})
    checkpoint = tmp_path / "checkpoint"
    batches: list[int] = []

    def run(until: int, fail_after: int | None = None) -> None:
        def write(frame: Any, batch: int) -> None:
            query_id = json.loads((checkpoint / "metadata").read_text())["id"]
            write_lake(frame.selectExpr("value", "value % 3 rest"), target, query_id=query_id, batch_id=batch)
            batches.append(batch)
            if batch == fail_after:
                raise RuntimeError("after the lake, before the commit")
            if batch >= until:
                done.set()

        done = threading.Event()
        query = source.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
        try:
            while not done.wait(0.05) and query.isActive:
                pass
        finally:
            query.stop()

    run(99, fail_after=1)
    run(4, fail_after=3)
    run(5)
    assert batches.count(1) == batches.count(3) == 2
    values = ds.dataset(target.path, partitioning="hive").to_table()["value"].to_pylist()
    assert len(values) == len(set(values)) >= 300
    assert sorted(values) == list(range(len(values)))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Lake("x", ("nobody",)), "cannot partition by nobody: the frame has id, name"),
        (Lake("x", ("id", "name")), "every column is in partition_by"),
        (Lake("x", options={"compression": "zip"}), "compression 'zip': one of snappy, zstd"),
        (Lake("x", options={"mode": "fast"}), "unknown option mode"),
    ],
)
def test_an_invalid_lake_declaration_is_refused_with_a_clear_message(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, target: Lake, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LakeError, match=words):
        write_lake(spark.range(3).selectExpr("id", "'n' name"), target, query_id="q", batch_id=0)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_task_leaves_the_lake_unchanged(tmp_path: Path, spark: SparkSession) -> None:
    target = Lake(str(tmp_path / "lake"))
    write_lake(spark.range(10), target, query_id="q", batch_id=0)
    bad = spark.range(10, 20).selectExpr("if(id = 17, raise_error('no'), id) id")
    with pytest.raises(Exception, match="no"):
        write_lake(bad, target, query_id="q", batch_id=1)
    assert ds.dataset(target.path).count_rows() == 10
    write_lake(spark.range(10, 20), target, query_id="q", batch_id=1)
    assert sorted(ds.dataset(target.path).to_table()["id"].to_pylist()) == list(range(20))
    assert leftovers(LakePlace(target.path)) == []


def test_stopping_is_no_exception_that_code_could_catch() -> None:
    assert not issubclass(Stopped, Exception)
