"""Rows for a lake and how a reader finds them again: each row says which batch and attempt it is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from ottla.pipeline.folders import Folder
from ottla.pipeline.lakes.files import Layout, write_files
from ottla.pipeline.lakes.layout import LakePlace, StagedFile, Writer

Row = tuple[int, int, int]
"""Batch, attempt, number. The same batch and number twice is a double row, whatever the attempt."""
WRITER = Writer("11111111-2222-3333-4444-555555555555")


def rows_of(batch: int, attempt: int = 0, count: int = 6) -> list[Row]:
    return [(batch, attempt, number) for number in range(count)]


def stager(
    rows: list[Row], writer: Writer = WRITER, *, partitioned: bool = True, files: int = 2
) -> Callable[[Folder], list[StagedFile]]:
    """Stages the rows as that many tasks would. Another attempt puts a row into another folder."""

    def stage(staging: Folder) -> list[StagedFile]:
        layout = Layout(
            writer.file_prefix(rows[0][0] if rows else 0), (("part", "__part"),) if partitioned else ()
        )
        done = []
        for task in range(files):
            mine = rows[task::files]
            columns: dict[str, Any] = {
                "batch": pa.array([row[0] for row in mine], pa.int64()),
                "attempt": pa.array([row[1] for row in mine], pa.int64()),
                "number": pa.array([row[2] for row in mine], pa.int64()),
            }
            if partitioned:
                columns["__part"] = pa.array([f"p{(row[1] + row[2]) % 3}" for row in mine], pa.string())
            done += write_files([pa.RecordBatch.from_pydict(columns)], staging, layout)
        return done

    return stage


def read(path: Path) -> list[Row]:
    """What pyarrow finds, which lists the folder and then reads the files."""
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table(
        columns=["batch", "attempt", "number"]
    )
    return [(row["batch"], row["attempt"], row["number"]) for row in table.to_pylist()]


def doubles(rows: list[Row]) -> list[tuple[int, int]]:
    counts = Counter((batch, number) for batch, _, number in rows)
    return sorted(key for key, count in counts.items() if count > 1)


def other_files(path: Path) -> list[Path]:
    """Whatever lies in the lake and is no data file."""
    return [file for file in path.rglob("*") if file.is_file() and file.suffix != ".parquet"]


def leftovers(place: LakePlace) -> list[str]:
    """Notes beside the lake that no stage needs any more."""
    entries = place.notes.list(recursive=True)
    kept = ("journals/", "compact.lock")
    return [each.name for each in entries if not each.is_folder and not each.name.startswith(kept)]


def forget_process() -> None:
    """As if the next call came from a new process."""
    import_module("ottla.pipeline.lakes.batches")._swept.clear()  # the package's `lake` is the declaration
