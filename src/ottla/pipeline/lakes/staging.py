"""How a DataFrame's rows reach the lake's staging folder: a Spark data source that only writes.

The tasks get Arrow batches and write the files themselves (`files.py`), so that names, syncing and
what is reported are ours: no temporary folders, no marker and checksum files, nothing to list afterwards.
Each task hands back what it wrote; only files of tasks that Spark counts are on the list, so a task that
was tried twice leaves an unlisted file that is swept, not a double one. The list reaches the driver as a
file beside the staged ones, because Spark collects it in a Python process of its own.
"""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from ottla.pipeline.declarations import StageError, nearest
from ottla.pipeline.folders import Folder
from ottla.pipeline.lakes.files import Layout, nullable, write_files
from ottla.pipeline.lakes.layout import LakeError, StagedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ottla.pipeline.declarations import Lake

_FORMAT = "ottla-lake-staging"
_MANIFEST = "files.json"
_REGISTERED = "spark.ottla.lake.registered"
_OPTIONS = ("compression", "file_bytes")
_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


def stage_frame(df: DataFrame, target: Lake, layout: Layout, staging: Folder) -> list[StagedFile]:
    """Runs the frame once and returns the files that hold its rows, all in `staging`."""
    texts = [column for _, column in layout.partition_columns]
    chosen = [df[_quoted(name)] for name in df.columns if name not in target.partition_by]
    chosen += [
        df[_quoted(name)].cast("string").alias(text)
        for name, text in zip(target.partition_by, texts, strict=True)
    ]
    session = df.sparkSession
    # A query runs in a copy of the session it was started from; registering twice makes Spark warn each time.
    if session.conf.get(_REGISTERED, "") != "yes":
        session.dataSource.register(StagingSource)
        session.conf.set(_REGISTERED, "yes")
    manifest = layout.prefix + _MANIFEST
    options = {"folder": staging.url, "manifest": manifest, "layout": json.dumps(asdict(layout))}
    df.select(*chosen).write.format(_FORMAT).options(**options).mode("append").save()
    listed = staging.read(manifest)
    if listed is None:
        raise LakeError(
            f"Spark wrote the batch, but the list of its files is not in {staging}. Workers and driver must"
            " see the same storage: put the lake on a shared mount or an object store."
        )
    staging.remove(manifest)
    return [StagedFile(**file) for file in json.loads(listed)]


def check_lake(schema: StructType, target: Lake, what: str) -> None:
    """What can be known before a run: options, columns and types. Raises `StageError`."""
    try:
        _layout(schema.fieldNames(), target, "")
        for field in schema.fields:
            if field.name not in target.partition_by:  # those are written as text, into names of folders
                _check_type(target, field)
    except LakeError as problem:
        raise StageError(f"{what}: {problem}") from None


def _check_type(target: Lake, field: StructField) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        arrow = pa.schema([pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"))])
        pq.ParquetWriter(io.BytesIO(), nullable(arrow)).close()
    except (PySparkException, pa.ArrowException, NotImplementedError):
        raise LakeError(
            f"{target.title}: column {field.name} is {field.dataType.simpleString()}, which the Parquet "
            "files of a lake cannot hold; cast it in the function, for example to string"
        ) from None


def layout_of(df: DataFrame, target: Lake, prefix: str) -> Layout:
    """How the files of a batch are to look, by the declaration."""
    return _layout(df.columns, target, prefix)


def _layout(columns: Sequence[str], target: Lake, prefix: str) -> Layout:
    unknown = set(target.options) - set(_OPTIONS)
    if unknown:
        raise LakeError(
            f"{target.title}: unknown option {min(unknown)}{nearest(min(unknown), _OPTIONS)}; known are "
            f"{' and '.join(_OPTIONS)}"
        )
    compression = target.options.get("compression", "snappy")
    if compression not in _COMPRESSIONS:
        raise LakeError(f"{target.title}: compression {compression!r}: one of {', '.join(_COMPRESSIONS)}")
    size = target.options.get("file_bytes", str(Layout.file_bytes))
    if not size.isdecimal() or int(size) < 1:
        raise LakeError(f"{target.title}: file_bytes {size!r}: a number of bytes is wanted")
    missing = [name for name in target.partition_by if name not in columns]
    if missing:
        raise LakeError(
            f"{target.title}: cannot partition by {missing[0]}: the frame has {', '.join(columns)}"
        )
    if len(columns) == len(target.partition_by):
        raise LakeError(f"{target.title}: every column is in partition_by, so nothing is left to write")
    return Layout(
        prefix=prefix,
        partition_columns=tuple((name, f"__partition_{n}") for n, name in enumerate(target.partition_by)),
        compression=compression,
        file_bytes=int(size),
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class StagingSource(DataSource):
    """Writes into a staging folder; made by `stage_frame`, of no use by itself."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        return StagingWriter(self.options)


@dataclass
class _Written(WriterCommitMessage):
    files: list[StagedFile]


class StagingWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = options["folder"]
        self._manifest = options["manifest"]
        self._layout = options["layout"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Written:
        given: dict[str, Any] = json.loads(self._layout)
        given["partition_columns"] = tuple(map(tuple, given["partition_columns"]))
        folder = Folder(self._folder)
        if folder.is_local and not folder.exists():
            raise LakeError(
                f"this worker ({socket.gethostname()}) does not see {folder}, which the driver made. Workers"
                " and driver must see the same storage: put the lake on a shared mount or an object store."
            )
        return _Written(write_files(iterator, folder, Layout(**given)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, _Written)]
        files = [asdict(file) for message in written for file in message.files]
        Folder(self._folder).write(self._manifest, json.dumps(files).encode() + b"\n")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was decided, and the next attempt sweeps."""
