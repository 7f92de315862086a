"""Taking out of a lake what a stage has written, so that it can be written anew: `reset STAGE --replace`.

A stage's files are known by the query id in their names. After a compaction they are not: its files hold
rows of everything that wrote to the lake. So compacted files go with the stage's own if nothing else ever
wrote to the lake, and otherwise the replacement is refused. The journals say which queries wrote.

Every step may be done again: a removal that a crash interrupts is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ottla.pipeline.folders import Folder
from ottla.pipeline.lakes.compact import alone
from ottla.pipeline.lakes.layout import (
    JOURNALS,
    LakeError,
    LakePlace,
    Writer,
    folders_of,
    is_ours,
    writer_and_batch,
)
from ottla.pipeline.lakes.swaps import finish_swaps


@dataclass(frozen=True)
class Replacement:
    """The files that go, and how many stay because others wrote them."""

    files: tuple[str, ...]
    bytes: int
    kept: int


def plan_replacement(lake: str | LakePlace, queries: Collection[str]) -> Replacement:
    """What goes from a Parquet lake with the rows of these queries. LakeError when that is not known."""
    place = _place(lake)
    if place is None:
        return Replacement((), 0, 0)
    files: list[str] = []
    size, kept, compacted = 0, 0, False
    for entry in place.lake.list(recursive=True):
        name = entry.name.rpartition("/")[2]
        if entry.is_folder or not name.endswith(".parquet"):
            continue
        written = writer_and_batch(name)
        if (written is not None and _query(written[0]) in queries) or (written is None and is_ours(name)):
            compacted = compacted or written is None
            files.append(entry.name)
            size += entry.size
        else:
            kept += 1
    others = {_query(writer) for writer in place.last_batches()} - set(queries)
    if compacted and others:
        raise LakeError(
            f"{place.lake} has been compacted, and other queries ({len(others)}) have written to it: rows of"
            " all are in the same files, so those of one stage cannot be taken out. Move the lake away with"
            " its notes, and reset every stage that writes to it"
        )
    return Replacement(tuple(files), size, kept)


def remove_rows(lake: str | LakePlace, queries: Collection[str]) -> int:
    """Remove what these queries have written, and their notes; returns the number of files."""
    place = _place(lake)
    if place is None:
        return 0
    with alone(place):
        finish_swaps(place)
        plan = plan_replacement(place, queries)
        place.lake.for_each(place.lake.remove, plan.files)
        for folder in folders_of(plan.files):
            place.lake.sync(folder)
        for query in queries:
            writer = Writer(query)
            place.staging(writer).remove_tree()
            place.notes.remove(f"{JOURNALS}/{writer.name}.json")
    return len(plan.files)


def _place(lake: str | LakePlace) -> LakePlace | None:
    if isinstance(lake, LakePlace):
        return lake
    folder = Folder(lake)
    if not folder.exists():
        return None
    if folder.exists("_delta_log"):
        raise LakeError(f"{folder} is a Delta table: take out what must go with the table's own tools")
    return LakePlace(folder)


def _query(writer: str) -> str:
    return writer.rpartition("-")[0]
