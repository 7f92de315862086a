"""Arrow batches into Parquet files, one or more for each partition folder: what a task does for the lake.

Rows are sorted into folders by the text of their partition columns, which Spark has made (so a date or a
number reads as Spark would write it) and which then stand in the folder's name instead of in the file. Few
files are open at a time; a folder that comes back after its file was closed gets another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.pipeline.folders import Folder
from ottla.pipeline.lakes.layout import STAGED, SUFFIX, StagedFile

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""How Hive, Spark and pyarrow write a partition value that is null."""
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(0x20)))
OPEN_FILES = 32
ROW_GROUP_BYTES = 64 << 20
"""Rows gather in memory until they make a row group; a small one for every Arrow batch reads badly."""
GATHERED_BYTES = 128 << 20
"""What may gather in a task over all its files."""
FILE_BYTES = 512 << 20


@dataclass(frozen=True)
class Layout:
    """How the files of a batch are to look."""

    prefix: str
    """What file names begin with."""
    partition_columns: tuple[tuple[str, str], ...] = ()
    """Name in the folder's name, and the text column of the frame that holds its values."""
    compression: str = "snappy"
    file_bytes: int = FILE_BYTES
    """A file that has grown to this size is closed and another one begun."""
    staged_suffix: str = STAGED
    """What the file is called until it is published; a Delta table takes its files under their first name."""


def partition_folder(names: Iterable[str], values: Iterable[str | None]) -> str:
    """`day=2026-01-01/kind=a`, with the characters escaped that Spark escapes."""
    pairs = zip(names, values, strict=True)
    return "/".join(f"{_escape(name)}={_escape(value) if value else NO_VALUE}" for name, value in pairs)


def partition_values(folder: str) -> dict[str, str | None]:
    """What `partition_folder` was made of."""
    pairs = (part.partition("=") for part in folder.split("/")) if folder else ()
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in pairs}


def write_files(batches: Iterable[pa.RecordBatch], staging: Folder, layout: Layout) -> list[StagedFile]:
    """Writes all rows into `staging`; the files are complete and on stable storage when this returns."""
    columns = [column for _, column in layout.partition_columns]
    names = [name for name, _ in layout.partition_columns]
    open_files: dict[str, _OpenFile] = {}
    done: list[StagedFile] = []
    try:
        for batch in batches:
            for values, rows in _by_partition(batch, columns):
                folder = partition_folder(names, values)
                file = open_files.pop(folder, None)
                if file is None:
                    if len(open_files) >= OPEN_FILES:
                        done.append(open_files.pop(next(iter(open_files))).finish())
                    file = _OpenFile(staging, folder, layout, rows)
                open_files[folder] = file  # last in the row: the one not used for longest is closed first
                file.write(rows)
                if sum(each.gathered for each in open_files.values()) > GATHERED_BYTES:
                    max(open_files.values(), key=lambda each: each.gathered).write_row_group()
                if file.size >= layout.file_bytes:
                    done.append(open_files.pop(folder).finish())
        while open_files:
            done.append(open_files.pop(next(iter(open_files))).finish())
    finally:
        for file in open_files.values():
            file.abandon()
    return done


class _OpenFile:
    def __init__(self, staging: Folder, folder: str, layout: Layout, first: pa.RecordBatch) -> None:
        self._folder = folder
        unique = uuid.uuid4().hex[:16]
        self._staged = layout.prefix + unique + layout.staged_suffix
        self._name = layout.prefix + unique + SUFFIX
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self.gathered = 0
        self._schema = nullable(first.schema)
        self._block: AbstractContextManager[IO[bytes]] = staging.create(self._staged)
        self._stream = self._block.__enter__()
        # Integers for hundreds of years, as every tool reads them, instead of the old 12 bytes.
        self._writer: Any = pq.ParquetWriter(
            self._stream, self._schema, compression=layout.compression, use_deprecated_int96_timestamps=False
        )

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows.cast(self._schema))
        self._rows += rows.num_rows
        self.gathered += rows.nbytes
        if self.gathered >= ROW_GROUP_BYTES:
            self.write_row_group()

    def write_row_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._waiting.clear()
        self.gathered = 0

    def finish(self) -> StagedFile:
        if self._waiting:
            self.write_row_group()
        self._writer.close()
        size = self.size
        self._block.__exit__(None, None, None)
        return StagedFile(self._staged, self._folder, self._name, self._rows, size)

    def abandon(self) -> None:
        """The task fails: the file is never listed, and is swept with its folder."""
        with suppress(OSError, ValueError):  # the disk may be what failed
            self._writer.close()
        with suppress(OSError):
            self._stream.close()


def _by_partition(
    batch: pa.RecordBatch, columns: list[str]
) -> Iterable[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of a batch by the values of these columns, which are left out; order is kept in a group."""
    if batch.num_rows == 0:
        return
    if not columns:
        yield (), batch
        return
    encoded = [batch.column(name).dictionary_encode("encode") for name in columns]
    code = encoded[0].indices
    for column in encoded[1:]:
        code = pc.add(
            pc.multiply(code.cast(pa.int64()), len(column.dictionary)), column.indices.cast(pa.int64())
        )
    data = batch.drop_columns(columns)
    if len(pc.unique(code)) == 1:
        yield tuple(column.dictionary[column.indices[0].as_py()].as_py() for column in encoded), data
        return
    order = pc.sort_indices(code)  # a stable sort
    code, data = code.take(order), data.take(order)
    encoded_rows = [column.indices.take(order) for column in encoded]
    start = 0
    for end in pc.run_end_encode(code).run_ends.to_pylist():
        values = tuple(
            column.dictionary[rows[start].as_py()].as_py()
            for column, rows in zip(encoded, encoded_rows, strict=True)
        )
        yield values, data.slice(start, end - start)
        start = end


def nullable(schema: pa.Schema) -> pa.Schema:
    """The same columns, all optional, as Spark's own writer has them: whether Spark can prove that there are
    no nulls changes with the plan, and files of one lake should not differ in it."""
    return pa.schema([_nullable_field(field) for field in schema])


def _nullable_field(field: pa.Field) -> pa.Field:
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_nullable_field(inner) for inner in type_.fields])
    elif pa.types.is_map(type_):
        type_ = pa.map_(type_.key_type, _nullable_field(type_.item_field))
    elif pa.types.is_list(type_):
        type_ = pa.list_(_nullable_field(type_.value_field))
    return pa.field(field.name, type_, nullable=True)


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
