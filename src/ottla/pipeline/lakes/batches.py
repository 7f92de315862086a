"""Each batch of a stage once into a folder of Parquet files, whatever crashes in between.

Spark runs a batch again when it cannot know that it was done. Then it has the same number, but not always the
same rows in the same files: a function may be random, tasks may be cut differently. So a batch is written as
a whole, and a later attempt takes the place of an earlier one:

1. Tasks write files that no reader sees (`staging.py`), and report them.
2. The journal of the writer is replaced by "batch 7 is these files; the files of its earlier attempt go".
   This one atomic write decides. Until then nothing in the lake has changed.
3. The earlier attempt's files are removed; usually there are none.
4. The new files are renamed into the lake, one by one.

A crash before 2 leaves staged files, which the next attempt sweeps away. A crash after 2 leaves a batch
that is partly there; Spark runs it again, and the journal says exactly which files its new ones replace.
Nothing is listed but the writer's own staging folder, so a batch costs the same in a lake of ten files or
of millions.

What a reader sees meanwhile: whole files only, and of a batch that is being published some files a moment
before the others; no row twice at any moment. When a batch is run again after a crash, its rows go away and
come back in step 3 and 4. A reader that listed files before step 3 and opens them after it misses some: it
gets an error, not a wrong result, and tries again.

A journal is by query id. A new checkpoint has a new one, so nothing of it is ever taken for done, and what
the old query wrote stays.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.pipeline.folders import Folder
from ottla.pipeline.lakes.layout import Journal, LakeError, LakePlace, StagedFile, Writer, folders_of
from ottla.pipeline.lakes.summary import LakeSummary
from ottla.pipeline.lakes.swaps import finish_swaps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.declarations import Lake

__all__ = ["LakeError", "LakeSummary", "commit_batch", "write_lake"]


def write_lake(df: DataFrame, target: Lake, *, query_id: str, batch_id: int) -> LakeSummary:
    """Writes the rows of a batch exactly once, to be called from `foreachBatch`.

    A stage writes a lake once (`refusals`), so its query is one writer there.
    """
    writer = Writer(query_id)
    if target.format == "delta":
        from ottla.pipeline.lakes.delta import write_delta

        return write_delta(df, target, writer=writer, batch_id=batch_id)
    from ottla.pipeline.lakes.staging import layout_of, stage_frame

    layout = layout_of(df, target, writer.file_prefix(batch_id))
    return commit_batch(
        LakePlace(target.path), writer, batch_id, lambda staging: stage_frame(df, target, layout, staging)
    )


_swept: set[tuple[str, str]] = set()
"""Writers of this process whose last batch ended well, so that nothing of theirs lies about."""
_sweeping = threading.Lock()


def commit_batch(
    place: LakePlace, writer: Writer, batch_id: int, stage: Callable[[Folder], list[StagedFile]]
) -> LakeSummary:
    """Publishes what `stage` writes into the folder it is given, in place of an earlier attempt's files."""
    earlier = place.read_journal(writer)
    if earlier is not None and batch_id < earlier.batch_id:
        raise LakeError(
            f"batch {batch_id} of query {writer.query_id} comes after batch {earlier.batch_id} was written to"
            f" {place.lake}. Another driver runs the same stage, or its checkpoint was put back to an earlier"
            " state. End the other driver; to process records again, reset the stage, which gives it a new"
            " query, and remove from the lake what must not be there twice."
        )
    key = (place.notes.url, writer.name)
    with _sweeping:
        clean = key in _swept
        _swept.discard(key)
    if not clean:
        finish_swaps(place)
        _sweep(place, writer, earlier, batch_id)

    attempt = f"{batch_id}-{uuid.uuid4().hex[:12]}"
    staging = place.staging(writer, attempt)
    staging.make()
    files = stage(staging)
    removes: tuple[str, ...] = ()
    if earlier is not None and earlier.batch_id == batch_id:
        # Decided once already and perhaps not finished; so that the list does not grow from crash to crash.
        place.lake.for_each(place.lake.remove, earlier.removes)
        removes = tuple(file.final for file in earlier.files)
    if files or removes:
        _check_staged(staging, files)
        staging.sync()
        journal = Journal(batch_id, attempt, tuple(files), removes)
        place.write_journal(writer, journal)
        _publish(place, writer, journal)
    staging.remove_tree()
    with _sweeping:
        _swept.add(key)
    return LakeSummary(
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        replaced=len(removes),
    )


def _check_staged(staging: Folder, files: list[StagedFile]) -> None:
    """Once decided, a staged file that is gone counts as published: so all must be here before."""
    there = {entry.name: entry.size for entry in staging.list()}
    for file in files:
        if there.get(file.staged) != file.bytes:
            raise LakeError(
                f"a task wrote {file.staged} with {file.bytes} bytes into {staging}, but the driver finds"
                f" {there.get(file.staged, 'no')} bytes there. Workers and driver must see the same storage:"
                " put the lake on a shared mount or an object store."
            )


def _publish(place: LakePlace, writer: Writer, journal: Journal, *, again: bool = False) -> None:
    place.lake.for_each(place.lake.remove, journal.removes)
    staging = place.staging(writer, journal.attempt)
    finals = [file.final for file in journal.files]
    for folder in folders_of(finals):
        place.lake.make(folder)

    def publish(file: StagedFile) -> None:
        try:
            staging.move(file.staged, file.final, place.lake)
        except FileNotFoundError:
            if not again:
                raise

    place.lake.for_each(publish, journal.files)
    for folder in folders_of([*finals, *journal.removes]):
        if place.lake.exists(folder):
            place.lake.sync(folder)


def _sweep(place: LakePlace, writer: Writer, journal: Journal | None, batch_id: int) -> None:
    """Removes what earlier crashes of this writer left in its staging folder."""
    staging = place.staging(writer)
    for entry in staging.list():
        # Spark counts the batch as done, so its files were renamed; but a loss of power can undo renames.
        if journal is not None and entry.name == journal.attempt and journal.batch_id < batch_id:
            _publish(place, writer, journal, again=True)
        staging.remove_tree(entry.name)
