"""Exactly once into a database: offsets are rows beside the results, written in the same database
transaction.

    offsets = DatabaseOffsets(connection, "billing")
    offsets.create_table()
    consumer = Consumer(
        "orders", bootstrap_servers=..., group_id="billing", commit="manual", on_assign=offsets.on_assign
    )
    for batch in consumer.batches():
        with offsets.transaction(consumer) as cursor:
            for record in batch:
                cursor.execute("INSERT INTO invoices ...")

Results and offsets are committed together or not at all, and reading begins at the stored offsets whenever a
partition is assigned. A consumer that has lost a partition without knowing it cannot write: the row has
another offset than it had read, and its transaction is rolled back. So is one in which partitions came or
went, because nothing would be stored for what was read of those. It is tested with sqlite3 and psycopg, and
written for any module of DB-API 2.0 whose parameters are `?` or `%s`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ottla.client.consumer import Consumer
from ottla.client.errors import ClientError, ConfigurationError
from ottla.client.records import TopicPartition

_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class OffsetsMovedError(ClientError):
    """The stored offsets are not those before the records that were read. Nothing was written."""


class DatabaseOffsets:
    """The offsets of one group in one table. The connection is used by one thread, without autocommit."""

    def __init__(self, connection: Any, group_id: str, *, table: str = "ottla_offsets") -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", table):
            raise ConfigurationError(f"{table!r} is no name of a table")
        if getattr(connection, "autocommit", False) is True:
            raise ConfigurationError("the connection commits by itself: turn autocommit off")
        self._connection = connection
        self._group_id = group_id
        self._table = table
        self._mark, self._refusal = _dialect(connection)
        self._known: dict[TopicPartition, int | None] = {}
        """What the table has, as far as this consumer knows; None: no row."""
        self._must_go_back = False
        """The consumer is not at the stored offsets: a transaction failed, or they could not be read."""
        self._open = False
        """A transaction is in progress."""
        self._assigned_within = False
        """Partitions were assigned since it began."""

    def create_table(self) -> None:
        """Create the table if it is not there."""
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (group_id VARCHAR(255) NOT NULL, "
            "topic VARCHAR(255) NOT NULL, partition_number INTEGER NOT NULL, next_offset BIGINT NOT NULL, "
            "PRIMARY KEY (group_id, topic, partition_number))"
        )
        self._connection.commit()

    def load(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The stored offsets: of the next record to read."""
        stored = {}
        for name in partitions:
            row = self._execute(
                f"SELECT next_offset FROM {self._table} "
                "WHERE group_id = ? AND topic = ? AND partition_number = ?",
                self._group_id,
                *name,
            ).fetchone()
            self._known[name] = None if row is None else int(row[0])
            if row is not None:
                stored[name] = int(row[0])
        if not self._open:
            self._connection.commit()  # ends the transaction that the reading began
        return stored

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The consumer's `on_assign`: begin where the table says."""
        self._assigned_within = True
        try:
            stored = self.load(partitions)
        except BaseException:
            self._must_go_back = True  # it reads from elsewhere now
            raise
        for name, offset in stored.items():
            consumer.seek(name, offset)

    @contextmanager
    def transaction(self, consumer: Consumer) -> Iterator[Any]:
        """One database transaction with the offsets of all that the consumer has handed out; gives a cursor.

        Write the results of what the last read gave, or read inside of the block as often as you like.

        When the block or the commit fails, everything is rolled back, and the consumer goes back to the
        stored offsets. If the database refuses even that, the next transaction does it before anything else,
        and raises, because the records that were read meanwhile are not the next ones.
        """
        if self._must_go_back:
            self._roll_back(consumer)
            raise OffsetsMovedError(
                "the database failed before; the consumer went back to the stored offsets: read again",
                retriable=True,
            )
        assigned = consumer.assignment()
        self._assigned_within, self._open = False, True
        try:
            cursor = self._connection.cursor()
            if _begins_nothing(self._connection):
                cursor.execute("BEGIN IMMEDIATE")
            yield cursor
            if self._assigned_within or consumer.assignment() != assigned:
                raise OffsetsMovedError(
                    "partitions came or went within the transaction; it is rolled back: read again",
                    retriable=True,
                )
            self._store(consumer)
            self._connection.commit()
        except BaseException:
            self._must_go_back = True
            self._open = False
            self._roll_back(consumer)
            raise
        self._open = False

    def _roll_back(self, consumer: Consumer) -> None:
        self._connection.rollback()
        self._go_back(consumer)
        self._must_go_back = False

    def _store(self, consumer: Consumer) -> None:
        for name, offset in consumer.positions().items():
            if name not in self._known:
                raise ConfigurationError("the consumer needs on_assign=offsets.on_assign, or a `load` before")
            known = self._known[name]
            if known == offset:
                continue
            if not (self._insert(name, offset) if known is None else self._update(name, known, offset)):
                raise OffsetsMovedError(
                    f"another consumer of {self._group_id} has worked on {name.topic}-{name.partition}; "
                    "this transaction is rolled back"
                )
            self._known[name] = offset

    def _insert(self, name: TopicPartition, offset: int) -> bool:
        """The first offset of a partition; False if it has one."""
        try:
            self._execute(
                f"INSERT INTO {self._table} (group_id, topic, partition_number, next_offset) "
                "VALUES (?, ?, ?, ?)",
                self._group_id,
                *name,
                offset,
            )
        except self._refusal:  # of the primary key
            return False
        return True

    def _update(self, name: TopicPartition, known: int, offset: int) -> bool:
        """The next offset of a partition; False if the one before is not the one that is known."""
        changed: int = self._execute(
            f"UPDATE {self._table} SET next_offset = ? "
            "WHERE group_id = ? AND topic = ? AND partition_number = ? AND next_offset = ?",
            offset,
            self._group_id,
            *name,
            known,
        ).rowcount
        return changed == 1

    def _go_back(self, consumer: Consumer) -> None:
        assigned = sorted(consumer.assignment())
        stored = self.load(assigned)
        for name in assigned:
            offset = stored.get(name, consumer.first_offset(name))
            if offset is not None:
                consumer.seek(name, offset)

    def _execute(self, statement: str, *values: Any) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement.replace("?", self._mark), values)
        return cursor


def _dialect(connection: Any) -> tuple[str, type[Exception]]:
    """How the connection's module writes a parameter, and what it raises when a key is there already."""
    module = sys.modules.get(type(connection).__module__.partition(".")[0])
    mark = _MARKS.get(getattr(module, "paramstyle", ""))
    refusal = getattr(module, "IntegrityError", None)
    if mark is None or refusal is None:
        raise ConfigurationError(
            f"a {type(connection).__name__} is no connection of DB-API 2.0 whose parameters are `?` or `%s`"
        )
    return mark, refusal


def _begins_nothing(connection: Any) -> bool:
    """Whether it is a connection of sqlite3 that was told to begin no transactions itself."""
    if not type(connection).__module__.startswith("sqlite3"):
        return False  # psycopg has an `isolation_level` too, and means something else with None
    return connection.isolation_level is None and not connection.in_transaction
