"""Compaction makes few files of many and neither loses nor doubles a row: at any crash, beside any writer."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ottla.pipeline.lakes.batches import LakeError, commit_batch
from ottla.pipeline.lakes.compact import Merged, compact_lake
from ottla.pipeline.lakes.layout import LakePlace, Writer
from pipeline.lake_reading import (
    WRITER,
    Row,
    doubles,
    forget_process,
    leftovers,
    other_files,
    read,
    rows_of,
    stager,
)
from pipeline.stopping_folder import Steps, Stopped, every_step, folder

ALL = [row for batch in range(5) for row in rows_of(batch)]


def fill(lake: Path, batches: int = 5, *, partitioned: bool = True) -> None:
    for batch in range(batches):
        commit_batch(LakePlace(lake), WRITER, batch, stager(rows_of(batch), partitioned=partitioned))


def clear(lake: Path) -> None:
    shutil.rmtree(lake, ignore_errors=True)
    shutil.rmtree(lake.with_name(f".{lake.name}.ottla"), ignore_errors=True)
    forget_process()


def files_of(lake: Path) -> list[str]:
    return sorted(str(file.relative_to(lake)) for file in lake.rglob("*.parquet"))


def test_small_files_of_each_folder_become_one_and_the_last_batch_stays(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)
    last = [name for name in files_of(lake) if "-000000004-" in name]
    steps: list[Merged] = []
    done = compact_lake(lake, progress=steps.append)
    assert sorted(read(lake)) == ALL
    assert (done.files_before, done.files_after, done.protected) == (30, 3 + len(last), len(last))
    assert done.rows == 24
    assert done.bytes_after < done.bytes_before
    now = files_of(lake)
    assert [name for name in now if "-000000004-" in name] == last
    assert [name.partition("/compacted-")[0] for name in now if "compacted-" in name] == [
        "part=p0",
        "part=p1",
        "part=p2",
    ]
    assert [(step.folder, step.files, step.done, step.total) for step in steps] == [
        ("part=p0", 8, 1, 3),
        ("part=p1", 8, 2, 3),
        ("part=p2", 8, 3, 3),
    ]
    assert other_files(lake) == []
    assert leftovers(LakePlace(lake)) == []
    assert compact_lake(lake).merges == [], "nothing is left to do"


def test_rows_stay_in_the_order_of_their_batches(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for batch in range(12):
        commit_batch(LakePlace(lake), WRITER, batch, stager(rows_of(batch), partitioned=False, files=1))
    compact_lake(lake)
    merged = next(lake.glob("compacted-*.parquet"))
    assert pq.read_table(merged)["batch"].to_pylist() == [batch for batch in range(11) for _ in range(6)]
    assert pq.ParquetFile(merged).num_row_groups == 1


def test_a_dry_run_says_what_would_be_done_and_touches_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)
    before = sorted(tmp_path.rglob("*"))
    plan = compact_lake(lake, dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert [(merge.folder, len(merge.names)) for merge in plan.merges] == [
        ("part=p0", 8),
        ("part=p1", 8),
        ("part=p2", 8),
    ]
    assert (plan.files_before, plan.files_after) == (30, 9)


def test_files_are_gathered_up_to_the_target_and_large_ones_left_alone(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake, 21, partitioned=False)
    sizes = [file.stat().st_size for file in lake.iterdir()]
    done = compact_lake(lake, target_bytes=max(sizes) * 9)
    assert 4 <= len(done.merges) <= 5
    untouched = compact_lake(lake, target_bytes=min(sizes) // 2)
    assert untouched.merges == []
    assert len(read(lake)) == 21 * 6
    assert doubles(read(lake)) == []
    with pytest.raises(LakeError, match="above 0"):
        compact_lake(lake, target_bytes=0)


def test_compacted_files_are_compacted_again_when_there_are_more(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)
    compact_lake(lake)
    for batch in range(5, 10):
        commit_batch(LakePlace(lake), WRITER, batch, stager(rows_of(batch)))
    done = compact_lake(lake)
    assert all(any("compacted" in name for name in merge.names) for merge in done.merges)
    assert sorted(read(lake)) == ALL + [row for batch in range(5, 10) for row in rows_of(batch)]


def test_files_that_the_lake_did_not_write_are_never_touched(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)
    foreign = [lake / "part=p0" / f"somebody-{n}.parquet" for n in range(4)]
    hidden = lake / "_temporary" / f"part-{WRITER.query_id}-000000000-0-aa.parquet"
    hidden.parent.mkdir()
    for file in [*foreign, hidden]:
        pq.write_table(pa.table({"batch": [99], "attempt": [0], "number": [0]}), file)
    compact_lake(lake)
    assert all(file.exists() for file in [*foreign, hidden])


def test_files_of_different_columns_are_not_mixed(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake, 4, partitioned=False)
    for file in sorted(lake.iterdir())[:4]:
        table = pq.read_table(file)
        pq.write_table(table.append_column("more", [["x"] * table.num_rows]), file)
    compact_lake(lake)
    schemas = {file.name: pq.read_schema(file).names for file in lake.iterdir() if "compacted" in file.name}
    assert sorted(map(len, schemas.values())) == [3, 4]
    assert sorted(read(lake)) == [row for batch in range(4) for row in rows_of(batch)]


def test_a_re_run_after_a_compaction_still_finds_its_files(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)
    compact_lake(lake)
    commit_batch(LakePlace(lake), WRITER, 4, stager(rows_of(4, attempt=1)))
    assert sorted(read(lake)) == [*ALL[:24], *rows_of(4, attempt=1)]


@pytest.mark.parametrize(
    "then", [pytest.param("another compaction", marks=pytest.mark.slow), "the next batch of a stage"]
)
def test_a_crash_at_any_file_operation_neither_loses_nor_duplicates_rows(tmp_path: Path, then: str) -> None:
    lake = tmp_path / "lake"
    swapping = {row for batch in range(4) for row in rows_of(batch)}

    def look() -> None:
        seen = read(lake)
        assert doubles(seen) == []
        missing = set(ALL) - set(seen)
        # One swap is on its way at a time: rows of one folder, of batches that are final.
        assert missing <= swapping
        assert len({(attempt + number) % 3 for _, attempt, number in missing}) <= 1

    def run(steps: Steps) -> None:
        clear(lake)
        shutil.copytree(tmp_path / "kept", lake)
        shutil.copytree(tmp_path / ".kept.ottla", tmp_path / ".lake.ottla")
        compact_lake(LakePlace(folder(lake, steps)))

    fill(tmp_path / "kept")
    run(Steps(watch=look))
    for at in every_step(run):
        forget_process()
        look()
        rows = list(ALL)
        if then == "another compaction":
            compact_lake(lake)
            assert leftovers(LakePlace(lake)) == []
        else:
            commit_batch(LakePlace(lake), WRITER, 5, stager(rows_of(5)))
            rows += rows_of(5)
        assert sorted(read(lake)) == rows, f"stopped at {at}"
        compact_lake(lake)
        assert sorted(read(lake)) == rows, f"stopped at {at}"
        assert leftovers(LakePlace(lake)) == []


def test_crash_after_crash_in_a_swap(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    kept = tmp_path / "kept"

    def put_back() -> None:
        clear(lake)
        shutil.copytree(kept / "lake", lake)
        shutil.copytree(kept / ".lake.ottla", tmp_path / ".lake.ottla")

    fill(lake, 3, partitioned=False)
    shutil.copytree(lake, kept / "lake")
    shutil.copytree(tmp_path / ".lake.ottla", kept / ".lake.ottla")
    first = 0
    while True:
        put_back()
        try:
            compact_lake(LakePlace(folder(lake, Steps(first))))
            break
        except Stopped:
            pass
        second = 0
        while True:
            put_back()
            with pytest.raises(Stopped):
                compact_lake(LakePlace(folder(lake, Steps(first))))
            try:
                compact_lake(LakePlace(folder(lake, Steps(second))))
                break
            except Stopped:
                pass
            compact_lake(lake)
            assert sorted(read(lake)) == ALL[:18], f"stopped at {first}, then at {second}"
            second += 1
        first += 1
    assert first > 10


def test_a_file_that_a_re_run_replaces_after_the_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    fill(lake, 3)
    journals = LakePlace.last_batches

    def writes_on(place: LakePlace) -> dict[str, int]:
        """The stage runs its last batch again, and the next one, before the journals are read."""
        monkeypatch.undo()
        for batch in (2, 3):
            commit_batch(place, WRITER, batch, stager(rows_of(batch)))
        return journals(place)

    monkeypatch.setattr(LakePlace, "last_batches", writes_on)
    compact_lake(lake)
    assert sorted(read(lake)) == [row for batch in range(4) for row in rows_of(batch)]
    compact_lake(lake)
    assert sorted(read(lake)) == [row for batch in range(4) for row in rows_of(batch)]
    assert leftovers(LakePlace(lake)) == []


def test_compaction_runs_concurrently_with_stages_and_readers(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    writers = [Writer(f"{n}0000000-2222-3333-4444-555555555555", n) for n in range(2)]
    commit_batch(LakePlace(lake), writers[0], 0, stager(rows_of(0), writers[0]))
    over = threading.Event()
    failures: list[BaseException] = []
    compactions = [0]
    expected: list[list[Row]] = [[], []]

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001  shown by the test
            failures.append(error)
            over.set()

    def write(which: int) -> None:
        batch = 1
        while not over.is_set():
            # Numbers tell the writers apart; some batches are run twice.
            for attempt in range(rng.choice([1, 1, 2])):
                rows = [(batch, attempt, number + 100 * which) for _, _, number in rows_of(batch)]
                commit_batch(LakePlace(lake), writers[which], batch, stager(rows, writers[which]))
            expected[which] += rows
            batch += 1

    def compact() -> None:
        while not over.is_set():
            compact_lake(lake, target_bytes=rng.choice([5_000, 20_000, 1 << 20]))
            compactions[0] += 1

    reads = 0
    threads = [
        threading.Thread(target=guarded, args=(work,))
        for work in (lambda: write(0), lambda: write(1), compact)
    ]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 60
        while (reads < 20 or compactions[0] < 15) and not failures and time.monotonic() < deadline:
            try:
                seen = read(lake)
            except FileNotFoundError:
                continue
            reads += 1
            assert doubles(seen) == []
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert sorted(read(lake)) == sorted(rows_of(0) + expected[0] + expected[1])
    assert (reads >= 20, compactions[0] >= 15) == (True, True), (reads, compactions)


def test_two_compactions_at_once_are_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)

    def second(_: Merged) -> None:
        with pytest.raises(LakeError, match="another compaction"):
            compact_lake(lake)

    assert len(compact_lake(lake, progress=second).merges) == 3


def test_files_of_ended_stages_are_removed_after_a_week(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake)
    staging = LakePlace(lake).staging(Writer("gone"))
    for name in ("0-old", "1-new"):
        staging.make(name)
        staging.write(f"{name}/x.staged", b"x")
    eight_days_ago = time.time() - 8 * 24 * 3600
    os.utime(Path(staging.path) / "0-old", (eight_days_ago, eight_days_ago))
    compact_lake(lake)
    assert [entry.name for entry in staging.list()] == ["1-new"]


def test_a_folder_that_is_not_a_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no lake at"):
        compact_lake(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    assert compact_lake(tmp_path / "empty").files_before == 0


def test_nested_columns_and_many_row_groups_come_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipeline.lakes.compact.ROW_GROUP_BYTES", 100_000)
    lake = tmp_path / "lake"
    lake.mkdir()
    rows = [
        {"id": n, "tags": [str(n)] * (n % 3), "who": {"name": f"n{n}", "age": None}, "pairs": [("k", n)]}
        for n in range(20_000)
    ]
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("who", pa.struct([("name", pa.string()), ("age", pa.int32())])),
            ("pairs", pa.map_(pa.string(), pa.int64())),
        ]
    )
    for n in range(4):
        table = pa.Table.from_pylist(rows[n * 5_000 : (n + 1) * 5_000], schema)
        pq.write_table(table, lake / f"part-q-{n:09d}-0-ab.parquet", row_group_size=700)
    compact_lake(lake, compression="zstd")
    assert len(files_of(lake)) == 1
    assert ds.dataset(lake).to_table().to_pylist() == rows
