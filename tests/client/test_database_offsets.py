"""Offsets in the reader's own database: stored with the results, safe from a reader that was replaced."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ottla
from client.consuming import PATIENCE, fill, group, numbers, until
from ottla.client import ConfigurationError, DatabaseOffsets, TopicPartition
from ottla.client.database_offsets import OffsetsMovedError


@pytest.fixture
def single(servers: str, make_topic: Callable[[int], str]) -> str:
    topic = make_topic(1)
    fill(servers, topic, numbers(0, 20))
    return topic


Connect = Callable[[], Any]
"""Opens a connection to the test's database."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    if request.param == "postgresql":
        return connect_to_postgresql(request.getfixturevalue("database"))
    return connect_to_sqlite(tmp_path)


def connect_to_sqlite(folder: Path) -> Connect:
    with sqlite3.connect(folder / "results.db") as connection:
        connection.execute("CREATE TABLE results (number INTEGER PRIMARY KEY, value TEXT)")
    return lambda: sqlite3.connect(folder / "results.db", check_same_thread=False)


def connect_to_postgresql(database: str) -> Connect:
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE IF EXISTS results, ottla_offsets")
        connection.execute("CREATE TABLE results (number SERIAL PRIMARY KEY, value TEXT)")
    return lambda: psycopg.connect(database)


def insert(cursor: Any, value: str) -> None:
    mark = "?" if isinstance(cursor, sqlite3.Cursor) else "%s"
    cursor.execute(f"INSERT INTO results (value) VALUES ({mark})", (value,))


def results(connect: Connect) -> list[str]:
    with contextlib.closing(connect()) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM results ORDER BY number")]


def test_results_and_offsets_are_written_together_or_not_at_all(
    servers: str, single: str, connect: Connect
) -> None:
    name = group()
    for first in (0, 5, 10):
        offsets = DatabaseOffsets(connect(), name)
        offsets.create_table()
        with ottla.Consumer(
            single, bootstrap_servers=servers, group_id=name, commit="manual", on_assign=offsets.on_assign
        ) as consumer:
            batch = consumer.fetch(5, timeout=PATIENCE)
            assert [each.offset for each in batch] == list(range(first, first + 5))
            with pytest.raises(ZeroDivisionError), offsets.transaction(consumer) as cursor:
                insert(cursor, "rolled back")
                raise ZeroDivisionError
            batch = consumer.fetch(5, timeout=PATIENCE)
            assert batch[0].offset == first, "it goes back to what is stored"
            with offsets.transaction(consumer) as cursor:
                for each in batch:
                    insert(cursor, each.value.decode())
            consumer.fetch(5, timeout=PATIENCE)  # read, and not stored
    assert results(connect) == [str(number) for number in range(15)]
    assert offsets.load([TopicPartition(single, 0)]) == {TopicPartition(single, 0): 15}


def test_records_of_a_failed_transaction_come_again_when_the_database_could_not_even_be_read(
    servers: str, single: str, tmp_path: Path
) -> None:
    place = TopicPartition(single, 0)
    connect = connect_to_sqlite(tmp_path)
    connection = connect()
    connection.execute("PRAGMA busy_timeout = 0")
    offsets, other = DatabaseOffsets(connection, "g"), connect()
    offsets.create_table()
    offsets.load([place])
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign({place: 0})
        assert len(consumer.fetch(5, timeout=PATIENCE)) == 5
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), offsets.transaction(consumer) as cursor:
            insert(cursor, "refused")
        assert consumer.fetch(5, timeout=PATIENCE)[0].offset == 5, "it could not go back"
        other.rollback()
        with pytest.raises(OffsetsMovedError, match="went back"), offsets.transaction(consumer):
            raise AssertionError("the records in between would be lost")
        batch = consumer.fetch(5, timeout=PATIENCE)
        assert batch[0].offset == 0
        with offsets.transaction(consumer) as cursor:
            insert(cursor, "once")
    assert results(connect) == ["once"]
    assert offsets.load([place]) == {place: 5}


def test_a_reader_that_was_replaced_cannot_write(servers: str, single: str, connect: Connect) -> None:
    place = TopicPartition(single, 0)
    with (
        ottla.Consumer(bootstrap_servers=servers) as first,
        ottla.Consumer(bootstrap_servers=servers) as second,
    ):
        for stored in (None, 5):
            readers = []
            for consumer in (first, second):
                offsets = DatabaseOffsets(connect(), "g")
                offsets.create_table()
                assert offsets.load([place]).get(place) == stored
                consumer.assign({place: stored or 0})
                assert len(consumer.fetch(5, timeout=PATIENCE)) == 5
                readers.append((consumer, offsets))
            (zombie, its_offsets), (owner, offsets) = readers
            with offsets.transaction(owner) as cursor:
                insert(cursor, "once")
            with pytest.raises(OffsetsMovedError, match="another consumer"):
                with its_offsets.transaction(zombie) as cursor:
                    insert(cursor, "twice")
            assert zombie.fetch(1, timeout=PATIENCE)[0].offset == (stored or 0) + 5
    assert results(connect) == ["once", "once"]


def test_a_transaction_in_which_partitions_came_is_rolled_back(
    servers: str, single: str, connect: Connect
) -> None:
    name = group()
    offsets = DatabaseOffsets(connect(), name)
    offsets.create_table()
    with ottla.Consumer(
        single, bootstrap_servers=servers, group_id=name, commit="manual", on_assign=offsets.on_assign
    ) as consumer:
        with pytest.raises(OffsetsMovedError, match="came or went"), offsets.transaction(consumer) as cursor:
            insert(cursor, "before the assignment")
            assert consumer.fetch(5, timeout=PATIENCE)
        with offsets.transaction(consumer) as cursor:
            for _ in range(3):
                insert(cursor, str(consumer.fetch(5, timeout=PATIENCE)[0].offset))
    assert results(connect) == ["0", "5", "10"]


def test_nothing_is_stored_when_offsets_could_not_be_read_at_an_assignment(
    servers: str, single: str, connect: Connect
) -> None:
    name, place = group(), TopicPartition(single, 0)
    offsets = DatabaseOffsets(connect(), name)
    offsets.create_table()

    def read(consumer: ottla.Consumer) -> int:
        batch = consumer.fetch(5, timeout=PATIENCE)
        with offsets.transaction(consumer) as cursor:
            insert(cursor, str(batch[0].offset))
        return batch[0].offset

    offsets.load([place])
    with ottla.Consumer(
        single, bootstrap_servers=servers, group_id=name, commit="manual", on_assign=offsets.on_assign
    ) as consumer:
        offsets._connection.close()
        with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError)):
            consumer.fetch(5, timeout=PATIENCE)
        assert consumer.assignment() == {place}
        offsets._connection = connect()
        with pytest.raises(OffsetsMovedError, match="went back"):
            read(consumer)
        assert read(consumer) == 0
    assert results(connect) == ["0"]


@pytest.mark.slow
def test_of_two_first_transactions_at_the_same_time_one_is_rolled_back(
    servers: str, single: str, database: str
) -> None:
    connect, place = connect_to_postgresql(database), TopicPartition(single, 0)
    owner = DatabaseOffsets(connect(), "g")
    owner.create_table()
    owner.load([place])
    refused: list[OffsetsMovedError] = []
    begun, waiting = threading.Event(), connect()

    def write_as_well() -> None:
        with ottla.Consumer(bootstrap_servers=servers) as consumer:
            late = DatabaseOffsets(waiting, "g")
            late.load([place])
            consumer.assign({place: 0})
            consumer.fetch(5, timeout=PATIENCE)
            try:
                with late.transaction(consumer) as cursor:
                    insert(cursor, "twice")
                    begun.set()
            except OffsetsMovedError as error:
                refused.append(error)

    thread = threading.Thread(target=write_as_well)
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign({place: 0})
        consumer.fetch(5, timeout=PATIENCE)
        with owner.transaction(consumer) as cursor:
            insert(cursor, "once")
            owner._store(consumer)  # its row is there, and not committed
            thread.start()
            assert begun.wait(PATIENCE)
            with contextlib.closing(connect()) as watching:
                until(lambda: is_blocked(watching, waiting.info.backend_pid), "second INSERT that waits")
    thread.join(PATIENCE)
    assert len(refused) == 1
    assert results(connect) == ["once"]


def is_blocked(watching: Any, backend: int) -> bool:
    row = watching.execute("SELECT cardinality(pg_blocking_pids(%s))", (backend,)).fetchone()
    return bool(row[0])


def test_sqlite_that_begins_no_transactions_itself_writes_all_or_nothing(
    servers: str, single: str, tmp_path: Path
) -> None:
    connect_to_sqlite(tmp_path)
    connection = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
    offsets = DatabaseOffsets(connection, "g")
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        with pytest.raises(ZeroDivisionError), offsets.transaction(consumer) as cursor:
            insert(cursor, "rolled back")
            raise ZeroDivisionError
        with offsets.transaction(consumer) as cursor:
            insert(cursor, "committed")
    assert [row[0] for row in connection.execute("SELECT value FROM results")] == ["committed"]


def test_connections_that_cannot_work_are_refused(servers: str, single: str, connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="object is no connection"):
        DatabaseOffsets(object(), "g")
    with pytest.raises(ConfigurationError, match="no name"):
        DatabaseOffsets(connect(), "g", table="a; DROP TABLE b")
    offsets = DatabaseOffsets(connect(), "g")
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(single, 0)])
        consumer.fetch(1, timeout=PATIENCE)
        offsets.create_table()
        with pytest.raises(ConfigurationError, match="on_assign"), offsets.transaction(consumer):
            pass
