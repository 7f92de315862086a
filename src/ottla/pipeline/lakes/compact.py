"""Many small Parquet files of a lake become few: what `ottla pipeline compact` does, with pyarrow alone.

A stream writes a file per task, batch and partition folder, most of them small, and readers pay for each. Per
folder, small files of stages (and of earlier compactions) are gathered up to a target size and rewritten as
one, in the order of their names, which is the order of batches. Files of anybody else are left alone.

It is safe while stages write and readers read. A stage may still replace the files of its last batch, which
stand in its journal, so these are not touched; every older batch is final. Files are listed first and
journals read afterwards: a file that was seen belongs to the batch its journal named then, or to an earlier
one. One that a re-run has replaced in between is gone by then, and left out. The swap itself is in
`swaps.py`; a crash leaves a note, and the next compaction or stage finishes it.

One compaction runs on a lake at a time: a lock says so on a local or mounted file system. On an object store
there is none, and two at once could write rows twice; start it from one place there.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.pipeline.folders import Entry, Folder
from ottla.pipeline.lakes.files import ROW_GROUP_BYTES
from ottla.pipeline.lakes.layout import (
    JOURNALS,
    STAGED,
    STAGING,
    SWAPS,
    LakeError,
    LakePlace,
    is_ours,
    writer_and_batch,
)
from ottla.pipeline.lakes.swaps import NOTE, Swap, carry_out, decide, finish_swaps

TARGET_BYTES = 128 << 20
SMALL = 0.75
"""A file below this part of the target is small: rewriting a larger one gains nothing."""
STALE_SECONDS = 7 * 24 * 3600.0
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Merge:
    """Files of one folder that become one."""

    folder: str
    """Relative to the lake; empty for the lake itself."""
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Merged:
    """A merge that was done, for a progress display."""

    folder: str
    files: int
    bytes_before: int
    bytes_after: int
    rows: int
    done: int
    """Merges done so far, of `total` that were planned."""
    total: int


@dataclass
class CompactionSummary:
    """What a compaction did, or with `dry_run` would do."""

    merges: list[Merge] = field(default_factory=list)
    files_before: int = 0
    """Data files in the lake."""
    files_after: int = 0
    bytes_before: int = 0
    """Of the files that were merged."""
    bytes_after: int = 0
    """Unknown, and so 0, for a dry run."""
    rows: int = 0
    protected: int = 0
    """Small files that stages may still replace."""
    finished: int = 0
    """Swaps of an earlier compaction that a crash had interrupted."""


def compact_lake(
    path: str | os.PathLike[str] | LakePlace,
    target_bytes: int = TARGET_BYTES,
    *,
    compression: str = "snappy",
    dry_run: bool = False,
    progress: Callable[[Merged], None] | None = None,
) -> CompactionSummary:
    """Merges the small files of every partition folder. With `dry_run`, only says what it would do."""
    if target_bytes < 1:
        raise LakeError(f"the target size must be above 0, not {target_bytes}")
    if not isinstance(path, LakePlace):
        folder = Folder(path)
        if not folder.exists():
            raise LakeError(f"there is no lake at {folder}")
        if folder.exists("_delta_log"):
            from ottla.pipeline.lakes.delta import compact_delta

            return compact_delta(folder.url, target_bytes, dry_run=dry_run)
        path = LakePlace(folder)
    if dry_run:
        return _plan(path, target_bytes)
    with alone(path):
        finished = finish_swaps(path)
        _sweep(path)
        summary = _plan(path, target_bytes)
        summary.finished = finished
        summary.files_after = summary.files_before
        for done, merge in enumerate(summary.merges, 1):
            fewer, size, rows = _merge(path, merge, compression)
            summary.files_after -= fewer
            summary.bytes_after += size
            summary.rows += rows
            if progress is not None:
                files = len(merge.names)
                progress(Merged(merge.folder, files, merge.bytes, size, rows, done, len(summary.merges)))
        return summary


def _plan(place: LakePlace, target_bytes: int) -> CompactionSummary:
    small: dict[str, list[Entry]] = {}
    summary = CompactionSummary()
    for entry in place.lake.list(recursive=True):
        folder, _, name = entry.name.rpartition("/")
        hidden = any(part.startswith(("_", ".")) for part in entry.name.split("/"))
        if entry.is_folder or hidden or not name.endswith(".parquet"):
            continue
        summary.files_before += 1
        if is_ours(name) and entry.size < SMALL * target_bytes:
            small.setdefault(folder, []).append(entry._replace(name=name))
    last = place.last_batches()  # after the listing: see above
    for folder, entries in sorted(small.items()):
        free = [entry for entry in entries if not _is_protected(entry.name, last)]
        summary.protected += len(entries) - len(free)
        summary.merges += _gather(folder, sorted(free), target_bytes)
    summary.bytes_before = sum(merge.bytes for merge in summary.merges)
    summary.files_after = summary.files_before - sum(len(merge.names) - 1 for merge in summary.merges)
    return summary


def _is_protected(name: str, last: dict[str, int]) -> bool:
    written = writer_and_batch(name)
    return written is not None and written[1] >= last.get(written[0], written[1] + 1)


def _gather(folder: str, entries: list[Entry], target_bytes: int) -> Iterator[Merge]:
    names: list[str] = []
    size = 0
    for entry in entries:
        names.append(entry.name)
        size += entry.size
        if size >= target_bytes:
            if len(names) > 1:
                yield Merge(folder, tuple(names), size)
            names, size = [], 0
    if len(names) > 1:
        yield Merge(folder, tuple(names), size)


def _merge(place: LakePlace, merge: Merge, compression: str) -> tuple[int, int, int]:
    """Carries out a merge, one file for each schema among its files.

    Returns by how many files the folder has fewer, and bytes and rows of the new ones.
    """
    folder = place.lake.below(merge.folder) if merge.folder else place.lake
    by_schema: dict[pa.Schema, list[str]] = {}
    for name in merge.names:
        try:
            with folder.open(name) as source:
                schema = pq.read_schema(source).remove_metadata()
        except FileNotFoundError:
            continue  # of an attempt that was replaced after the listing, before its batch became final
        by_schema.setdefault(schema, []).append(name)
    fewer = size = rows = 0
    for schema, names in by_schema.items():
        if len(names) < 2:
            continue
        swap_id = uuid.uuid4().hex[:16]
        new = f"compacted-{time.time_ns() // 1_000_000}-{swap_id}.parquet"
        swap = Swap(swap_id, merge.folder, new, tuple(names))
        place.notes.make(SWAPS)
        with place.notes.create(swap.staged) as stream:
            rows += _rewrite(folder, names, schema, stream, compression)
            size += stream.tell()
        decide(place, swap)
        carry_out(place, swap)
        fewer += len(names) - 1
    return fewer, size, rows


def _rewrite(folder: Folder, names: list[str], schema: pa.Schema, stream: Any, compression: str) -> int:
    """All rows of these files into one, in order; returns how many."""
    waiting: list[pa.RecordBatch] = []
    gathered = written = promised = 0

    def write_row_group() -> None:
        nonlocal gathered, written
        table = pa.Table.from_batches(waiting, schema)
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
        written += table.num_rows
        gathered = 0
        waiting.clear()

    with pq.ParquetWriter(stream, schema, compression=compression) as writer:
        for name in names:
            with folder.open(name) as source, pq.ParquetFile(source) as file:
                promised += file.metadata.num_rows
                for batch in file.iter_batches(_BATCH_ROWS):
                    waiting.append(batch.replace_schema_metadata(None))
                    gathered += batch.nbytes
                    if gathered >= ROW_GROUP_BYTES:
                        write_row_group()
        write_row_group()
    if written != promised:
        raise LakeError(f"{folder}: {written} rows came out of files with {promised}; nothing is changed")
    return written


@contextmanager
def alone(place: LakePlace) -> Iterator[None]:
    """Held while files of finished batches are removed: one process at a time."""
    if not place.notes.is_local:
        yield
        return
    place.notes.make()
    with (Path(place.notes.path) / "compact.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeError(f"another compaction of {place.lake} is running") from None
        yield


def _sweep(place: LakePlace) -> None:
    """Removes what crashes left: rewritten files without a decision, and what ended stages had staged."""
    now = time.time()

    def is_stale(entry: Entry) -> bool:
        return 0 < entry.modified < now - STALE_SECONDS

    entries = place.notes.list(SWAPS)
    decided = {entry.name.removesuffix(NOTE) for entry in entries if entry.name.endswith(NOTE)}
    for entry in entries:
        is_kept = entry.name.endswith(NOTE) or entry.name.removesuffix(STAGED) in decided
        # Under the lock nothing else can be writing it; elsewhere only its age tells.
        if not is_kept and (place.notes.is_local or is_stale(entry)):
            place.notes.remove(f"{SWAPS}/{entry.name}")
    for writer in place.notes.list(STAGING):
        data = place.notes.read(f"{JOURNALS}/{writer.name}.json")
        for entry in place.notes.list(f"{STAGING}/{writer.name}"):
            # What a journal names was decided, and belongs to the stage until it goes on.
            if is_stale(entry) and (data is None or f'"{entry.name}"'.encode() not in data):
                place.notes.remove_tree(f"{STAGING}/{writer.name}/{entry.name}")
