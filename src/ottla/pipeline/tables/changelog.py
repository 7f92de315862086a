"""A topic as a table: one row for each key, as new as the batch that joins with it.

Before a batch is planned, the end of the topic is looked up. What is new since the batch before is
read, decoded as any input, merged into files in the stage's folder, and noted as the version of this batch.
Nothing is kept in memory: the table lies in Parquet files, in two parts, so that a few changes do not write
the whole of it again, and a join reads them as it reads any other table.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from ottla.pipeline.declarations import SOURCE_COLUMN, Changelog, Stage, StageError
from ottla.pipeline.folders import Folder, for_spark
from ottla.pipeline.tables.merging import (
    DELETED,
    KEY,
    TableColumns,
    latest,
    marked,
    merged,
    quoted,
    table_columns,
)
from ottla.pipeline.tables.relation import Files, latest_rows
from ottla.pipeline.tables.versions import Notes, Step, Version, is_folded, next_step, with_next
from ottla.pipeline.values.formats import BAD, explained, reader_of

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import StageFolder
    from ottla.pipeline.connectors import Connection
    from ottla.pipeline.dead_letters import DeadLetters

log = logging.getLogger("ottla.pipeline")

RECORDS_IN_A_TASK = 100_000
"""Records that are merged by one task; more are shared out."""
_NO_KEY = "a record of a table needs a key"


class ChangelogTable:
    """One table of one stage, from the start of its query to the end."""

    def __init__(
        self,
        spark: SparkSession,
        declared: Changelog,
        number: int,
        stage: Stage,
        connection: Connection,
        folder: StageFolder,
        letters: DeadLetters | None,
    ) -> None:
        what = f"stage {stage.name}"
        self._spark = spark
        self._declared = declared
        self._stage = stage
        self._connection = connection
        self._stage_folder = folder
        self._letters = letters
        self._options = connection.table_options(declared.topic)
        self._columns: TableColumns = table_columns(declared, reader_of(declared.topic), what)
        self._folder: Folder = folder.table_folder(number)
        self._notes = Notes(folder, number, declared.fingerprint)
        self._lock = threading.RLock()
        self._current: Version | None = None
        self._base = Files(spark, self._columns.stored, self.prepare)
        self._recent = Files(spark, self._columns.stored, self.prepare)

    def frame(self) -> DataFrame:
        """The table as a stage's function gets it."""
        names = [quoted(each) for each in self._columns.schema.fieldNames()]
        return latest_rows(self._base.frame(), self._recent.frame(), KEY, DELETED, names)

    def prepare(self, batch: int) -> None:
        """Make the files those of this batch. The first call in a batch may read from the topic."""
        with self._lock:
            if self._current is not None and self._current.batch == batch:
                return
            version = self._version_of(batch)
            self._base.use(self._path(version.base))
            self._recent.use(self._path(version.recent))
            self._current = version

    def _version_of(self, batch: int) -> Version:
        query_id = self._stage_folder.query_id()
        versions = [each for each in self._notes.read(query_id) if self._is_whole(each)]
        noted = next((each for each in versions if each.batch == batch), None)
        if noted is not None:
            return noted
        before = max(
            (each for each in versions if each.batch < batch), key=lambda each: each.batch, default=None
        )
        version = self._next(before, batch)
        kept = with_next(versions, version)
        self._notes.write(query_id, kept)
        self._remove_unused(kept)
        return version

    def _next(self, before: Version | None, batch: int) -> Version:
        now = time.time()
        span = self._connection.table_span(self._declared.topic)
        step = next_step(before, span, now)
        if step.why:
            log.warning("stage %s: %s is loaded anew: %s", self._stage.name, self._declared.title, step.why)
        started = Version(batch, span.topic_id, dict(step.ends), now)
        if before is not None and not step.from_nothing:
            started = replace(before, batch=batch, offsets=dict(step.ends), looked_at=now)
        if not step.records:
            return started
        if is_folded(before, step):
            parts = [] if before is None or step.from_nothing else before.folders
            name, rows = self._write(f"data-{batch}-base", parts, step, with_deletions=False)
            return replace(started, base=name, base_rows=rows, recent=None, recent_rows=0)
        assert before is not None
        parts = [before.recent] if before.recent is not None else []
        name, rows = self._write(f"data-{batch}-recent", parts, step, with_deletions=True)
        return replace(started, recent=name, recent_rows=rows)

    def _write(self, name: str, parts: list[str], step: Step, *, with_deletions: bool) -> tuple[str, int]:
        """Merge what is new with these folders into a new one; returns it and how many rows it has."""
        topic = self._declared.topic.name
        assert topic is not None
        raw = self._connection.read_range(
            self._spark,
            self._options,
            {
                (topic, place): step.starts[place]
                for place, end in step.ends.items()
                if end > step.starts[place]
            },
            {(topic, place): end for place, end in step.ends.items() if end > step.starts[place]},
        )
        records = marked(raw, self._columns.reader).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._tell_bad(records.where(F.col(BAD)))
            good = records.where(~F.col(BAD))
            stored = [self._stored(each) for each in parts]
            pieces = 1 + step.records // RECORDS_IN_A_TASK
            rows = merged(latest(good, self._columns, pieces), stored, self._columns)
            kept = rows if with_deletions else rows.where(~F.col(DELETED))
            if pieces == 1:
                kept = kept.coalesce(1)
            kept.write.mode("overwrite").parquet(str(self._path(name)))
        finally:
            records.unpersist()
        return name, self._settle(name)

    def _stored(self, part: str) -> DataFrame:
        return self._spark.read.schema(self._columns.stored).parquet(str(self._path(part)))

    def _tell_bad(self, bad: DataFrame) -> None:
        """What becomes of records that cannot be read is what the stage declared."""
        count = bad.count()
        if not count:
            return
        reader = self._columns.reader
        if self._stage.bad == "fail":
            first: Any = bad.select(SOURCE_COLUMN, "value").first()
            at = first[SOURCE_COLUMN]
            reason = _NO_KEY if at.key is None else reader.explain(first["value"])
            raise StageError(
                f"stage {self._stage.name}: bad record in {at.topic}, partition {at.partition}, offset"
                f' {at.offset}: {reason} (the stage says bad="fail")'
            )
        log.warning("stage %s: %s: bad records: %d", self._stage.name, self._declared.title, count)
        if self._letters is not None:
            key = F.col(SOURCE_COLUMN).getField("key")
            reason_of = F.when(key.isNull(), _NO_KEY).otherwise(explained(F.col("value"), reader))
            self._letters.write_bad(bad, reason_of)

    # Files

    def _path(self, name: str | None) -> str | None:
        return None if name is None else for_spark(self._folder.below(name).url)

    def _is_whole(self, version: Version) -> bool:
        missing = [each for each in version.folders if not self._folder.exists(each)]
        if missing:
            log.warning("%s: %s is gone", self._folder, missing[0])
        return not missing

    def _settle(self, name: str) -> int:
        """Put what Spark has written on stable storage; returns how many rows there are."""
        rows = 0
        for entry in self._folder.list(name):
            if entry.name.endswith(".parquet"):
                with self._folder.open(f"{name}/{entry.name}") as file:
                    rows += pq.read_metadata(file).num_rows
                self._folder.sync(f"{name}/{entry.name}")
        self._folder.sync(name)
        self._folder.sync()
        return rows

    def _remove_unused(self, versions: list[Version]) -> None:
        used = {each for version in versions for each in version.folders}
        for entry in self._folder.list():
            if entry.is_folder and entry.name.startswith("data-") and entry.name not in used:
                self._folder.remove_tree(entry.name)
