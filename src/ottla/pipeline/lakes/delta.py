"""Each batch of a stage once into a Delta Lake table, through the package `deltalake`.

A Delta table has a log that says which files it consists of, so here nothing is staged and renamed: the tasks
write their files into the table's folder, where no reader looks at a file that the log does not name, and one
commit adds them all. In the same commit stands an application transaction: "query q has written batch 7". A
batch that Spark runs again finds that note and is not written again; the files of an attempt that never came
to its commit are swept by the table's own vacuum.

Other than a Parquet lake, a table is all old or all new to a reader at every moment.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ottla.pipeline.folders import Folder, absolute
from ottla.pipeline.lakes.files import partition_values
from ottla.pipeline.lakes.layout import SUFFIX, LakeError, StagedFile, Writer
from ottla.pipeline.lakes.summary import LakeSummary

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame

    from ottla.pipeline.declarations import Lake
    from ottla.pipeline.lakes.compact import CompactionSummary


def write_delta(df: DataFrame, target: Lake, *, writer: Writer, batch_id: int) -> LakeSummary:
    """Adds the rows of a batch to the table, which the first batch makes."""
    from dataclasses import replace

    from ottla.pipeline.lakes.staging import layout_of, stage_frame

    table = _open(target.path)
    done = None if table is None else table.transaction_version(writer.name)
    if done == batch_id:
        return LakeSummary(rows=0, files=0, bytes=0, done_before=True)
    if done is not None and done > batch_id:
        raise LakeError(
            f"batch {batch_id} of query {writer.query_id} comes after batch {done} was written to"
            f" {target.path}. Another driver runs the same stage, or its checkpoint was put back to an"
            " earlier state. End the other driver; to process records again, reset the stage."
        )
    schema = _nullable(json.loads(df.schema.json()))
    if table is not None:
        _check_schema(target, table, schema)
    layout = replace(layout_of(df, target, writer.file_prefix(batch_id)), staged_suffix=SUFFIX)
    folder = Folder(target.path)
    folder.make()
    files = stage_frame(df, target, layout, folder)
    if files:
        folder.sync()
        _commit(target, table, schema, files, _transaction(writer.name, batch_id))
    return LakeSummary(
        rows=sum(file.rows for file in files), files=len(files), bytes=sum(file.bytes for file in files)
    )


def _open(path: str) -> DeltaTable | None:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise LakeError(
            f"lake {path} is a Delta table, which needs one more package: pip install 'ottla[delta]'"
        ) from None
    path = absolute(path)
    return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def _transaction(app_id: str, version: int) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    # The table refuses a second commit of the same pair made at the same time by another driver.
    return CommitProperties(app_transactions=[Transaction(app_id, version)])


def _commit(
    target: Lake,
    table: DeltaTable | None,
    schema: dict[str, Any],
    files: list[StagedFile],
    transaction: CommitProperties,
) -> None:
    from deltalake import Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions

    now_ms = int(time.time() * 1000)
    actions = [
        AddAction(
            path=file.staged,
            size=file.bytes,
            partition_values=partition_values(file.folder),
            modification_time=now_ms,
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in files
    ]
    partition_by = list(target.partition_by)
    if table is None:
        create_table_with_add_actions(
            absolute(target.path),
            Schema.from_json(json.dumps(schema)),
            actions,
            partition_by=partition_by,
            commit_properties=transaction,
        )
    else:
        table.create_write_transaction(
            list(actions), "append", table.schema(), partition_by, commit_properties=transaction
        )


def _check_schema(target: Lake, table: DeltaTable, schema: dict[str, Any]) -> None:
    there = {
        field["name"]: field["type"] for field in _nullable(json.loads(table.schema().to_json()))["fields"]
    }
    coming = {field["name"]: field["type"] for field in schema["fields"]}
    if there != coming:
        changed = sorted(name for name in there.keys() | coming.keys() if there.get(name) != coming.get(name))
        what = "; ".join(
            f"{name}: {_type_name(there.get(name))} there, {_type_name(coming.get(name))} in the stage"
            for name in changed
        )
        raise LakeError(
            f"{target.title} has other columns than the stage now writes ({what}). Change the table first, or"
            " write to another path."
        )
    columns = table.metadata().partition_columns
    if tuple(columns) != target.partition_by:
        raise LakeError(f"{target.title} is partitioned by {columns}, not by {list(target.partition_by)}")


def _type_name(type_: Any) -> str:
    return "no such column" if type_ is None else type_ if isinstance(type_, str) else json.dumps(type_)


def _nullable(type_: Any) -> Any:
    """Spark's schema, which is written as Delta writes its own, with every value optional and without notes.

    Whether Spark can prove that a column has no nulls changes with the plan, and is no promise of the table.
    """
    if isinstance(type_, list):
        return [_nullable(each) for each in type_]
    if not isinstance(type_, dict):
        return type_
    changed = {key: _nullable(value) for key, value in type_.items() if key != "metadata"}
    for key in ("nullable", "containsNull", "valueContainsNull"):
        if key in changed:
            changed[key] = True
    if "nullable" in changed:
        changed["metadata"] = {}
    return changed


def compact_delta(path: str, target_bytes: int, *, dry_run: bool) -> CompactionSummary:
    """Lets the table compact itself; a reader sees it before or after."""
    from ottla.pipeline.lakes.compact import CompactionSummary, Merge

    table = _open(path)
    if dry_run or table is None:
        raise LakeError(
            f"{path} is a Delta table: it compacts itself and cannot say beforehand what it will do"
        )
    before = _rows_of_files(table)
    done = table.optimize.compact(target_size=target_bytes)
    after = _rows_of_files(table)
    merged = before.keys() - after.keys()
    size = int(json.loads(done["filesRemoved"])["totalSize"] or 0)
    return CompactionSummary(
        merges=[Merge("", tuple(sorted(merged)), size)] if merged else [],
        files_before=len(before),
        files_after=len(after),
        bytes_before=size,
        bytes_after=int(json.loads(done["filesAdded"])["totalSize"] or 0),
        rows=sum(before[name] for name in merged),
    )


def _rows_of_files(table: DeltaTable) -> dict[str, int]:
    import pyarrow as pa

    actions = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(actions["path"].to_pylist(), actions["num_records"].to_pylist(), strict=True))
