"""Files as a table of Spark's whose list may change from batch to batch.

Spark resolves a table that is joined with a stream once, when the query starts, and keeps the list of its
files. It does ask a `FileIndex` for that list whenever it plans a batch, and that is an interface: here it is
implemented in Python, called back by the JVM, and answers with the files of the version that belongs to the
batch. Reading the files is Spark's own work, with its Parquet reader.

The JVM also asks while a stage is built and checked. Then no batch runs, and nothing is read for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

_numbers = itertools.count(1)
_BATCH = "streaming.sql.batchId"


class Files:
    """The files of one part of a table, as Spark asks for them."""

    def __init__(self, spark: SparkSession, schema: T.StructType, prepare: Callable[[int], None]) -> None:
        self._spark = spark
        self._schema = schema
        self._prepare = prepare
        """Is called with the number of the batch that asks; brings the files up to date."""
        self._number = next(_numbers)
        self._index: Any = None

    class Java:
        implements = ["org.apache.spark.sql.execution.datasources.FileIndex"]

    def use(self, folder: str | None) -> None:
        """From now on these are the files: those of a folder, or none."""
        self._index = None
        if folder is not None:
            read = self._spark.read.schema(self._schema).parquet(folder)
            self._index = read._jdf.queryExecution().analyzed().relation().location()

    def frame(self) -> DataFrame:
        """The files as a DataFrame that does not stream."""
        from pyspark.java_gateway import ensure_callback_server_started

        context, jvm = self._spark.sparkContext, self._spark._jvm
        assert jvm is not None
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
        session = self._spark._jsparkSession
        sources = jvm.org.apache.spark.sql.execution.datasources
        relation = sources.HadoopFsRelation(
            self,
            self.partitionSchema(),
            session.parseDataType(self._schema.json()),
            jvm.scala.Option.empty(),
            sources.parquet.ParquetFileFormat(),
            getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty(),
            session,
        )
        return DataFrame(session.baseRelationToDataFrame(relation), self._spark)

    # What Spark calls

    def listFiles(self, partition_filters: Any, data_filters: Any) -> Any:
        self._ask()
        return (
            self._nothing() if self._index is None else self._index.listFiles(partition_filters, data_filters)
        )

    def sizeInBytes(self) -> int:
        self._ask()
        return 0 if self._index is None else int(self._index.sizeInBytes())

    def rootPaths(self) -> Any:
        return self._nothing() if self._index is None else self._index.rootPaths()

    def inputFiles(self) -> Any:
        if self._index is not None:
            return self._index.inputFiles()
        return self._spark.sparkContext._gateway.new_array(self._spark._jvm.java.lang.String, 0)  # type: ignore[union-attr]

    def partitionSchema(self) -> Any:
        return self._spark._jsparkSession.parseDataType(T.StructType().json())

    def metadataOpsTimeNs(self) -> Any:
        assert self._spark._jvm is not None
        return self._spark._jvm.scala.Option.empty()

    def isTimeTravel(self) -> bool:
        return False

    def refresh(self) -> None:
        """The files change with the batch only."""

    def toString(self) -> str:
        return f"table files {self._number}"

    def hashCode(self) -> int:
        return self._number

    def equals(self, other: Any) -> bool:
        return other is not None and bool(other.toString() == self.toString())

    def _ask(self) -> None:
        batch = self._spark.sparkContext.getLocalProperty(_BATCH)
        if batch is not None:
            self._prepare(int(batch))

    def _nothing(self) -> Any:
        assert self._spark._jvm is not None
        return getattr(self._spark._jvm.scala.collection.immutable, "Nil$").__getattr__("MODULE$")


def latest_rows(
    base: DataFrame, recent: DataFrame, key: str, deleted: str, columns: Sequence[str]
) -> DataFrame:
    """The table that two parts make: what the recent one has, and the rest of the base."""
    from pyspark.sql import functions as F

    unchanged = base.join(F.broadcast(recent.select(key)), key, "left_anti")
    return unchanged.select(*columns).union(recent.where(~F.col(deleted)).select(*columns))
