"""What each named delivery loses and doubles when its process is killed (SIGKILL) at random moments.

The work of a record is one write to a file, which a killed process either did or did not do; for
`exactly-once` it is a record in another topic, and for a database a row. The counts are printed (`pytest
-s`); docs/client/delivery.md has those of thirty kills.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Message

import ottla
from client.consuming import PATIENCE, fill, group, numbers, until
from ottla.client import TopicPartition

TO_FILE = """
import os, time, ottla
file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with ottla.Consumer(
    {topic!r}, bootstrap_servers={servers!r}, group_id={name!r}, group_instance_id="one",
    delivery={delivery!r}, commit_interval=0.05, batch_size=50,
) as consumer:
    for record in consumer:
        time.sleep(0.001)
        os.write(file, record.value + b"\\n")
"""
POOL = """
import os, time, ottla
from ottla.client import Pool
file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work(record):
    time.sleep(0.004)
    os.write(file, record.value + b"\\n")
with ottla.Consumer(
    {topic!r}, bootstrap_servers={servers!r}, group_id={name!r}, group_instance_id="one"
) as consumer:
    Pool(work, consumer, workers=4, max_in_flight=100, commit_interval=0.05).run()
"""
TO_TOPIC = """
import time, ottla
with ottla.Producer(bootstrap_servers={servers!r}, transactional_id={name!r}) as producer:
    with ottla.Consumer(
        {topic!r}, bootstrap_servers={servers!r}, group_id={name!r}, group_instance_id="one",
        delivery="exactly-once",
    ) as consumer:
        for batch in consumer.batches(50):
            with producer.transaction(consumer):
                for record in batch:
                    time.sleep(0.001)
                    producer.send({output!r}, record.value)
"""
TO_SQLITE = """
import sqlite3, time, ottla
from ottla.client import DatabaseOffsets
connection = sqlite3.connect({path!r}, timeout=30)
connection.execute("CREATE TABLE IF NOT EXISTS results (value TEXT)")
offsets = DatabaseOffsets(connection, {name!r})
offsets.create_table()
with ottla.Consumer(
    {topic!r}, bootstrap_servers={servers!r}, group_id={name!r}, group_instance_id="one",
    commit="manual", on_assign=offsets.on_assign,
) as consumer:
    for batch in consumer.batches(50):
        with offsets.transaction(consumer) as cursor:
            for record in batch:
                time.sleep(0.001)
                cursor.execute("INSERT INTO results VALUES (?)", (record.value.decode(),))
"""
TO_POSTGRESQL = """
import psycopg, time, ottla
from ottla.client import DatabaseOffsets
connection = psycopg.connect({database!r})
offsets = DatabaseOffsets(connection, {name!r})
offsets.create_table()
with ottla.Consumer(
    {topic!r}, bootstrap_servers={servers!r}, group_id={name!r}, group_instance_id="one",
    commit="manual", on_assign=offsets.on_assign,
) as consumer:
    for batch in consumer.batches(50):
        with offsets.transaction(consumer) as cursor:
            for record in batch:
                time.sleep(0.001)
                cursor.execute("INSERT INTO results VALUES (%s)", (record.value.decode(),))
"""
PROGRAMS = {
    "at-most-once": TO_FILE,
    "at-least-once": TO_FILE,
    "at-least-once pool": POOL,
    "exactly-once": TO_TOPIC,
    "sqlite": TO_SQLITE,
    "postgresql": TO_POSTGRESQL,
}


def results(
    option: str, path: Path, output: str, read_all: Callable[[str], list[Message]], database: str
) -> list[bytes]:
    if option == "exactly-once":
        return [each.value() or b"" for each in read_all(output)]
    if option == "postgresql":
        with psycopg.connect(database) as connection:
            return [row[0].encode() for row in connection.execute("SELECT value FROM results")]
    if not path.exists():
        return []
    if option == "sqlite":
        try:
            rows = sqlite3.connect(path, timeout=30).execute("SELECT value FROM results").fetchall()
        except sqlite3.OperationalError:  # the table is not there yet
            return []
        return [row[0].encode() for row in rows]
    return path.read_bytes().split()


def finished(servers: str, name: str, topic: str, records: int) -> bool:
    with ottla.Consumer(bootstrap_servers=servers, group_id=name) as consumer:
        return consumer.committed(TopicPartition(topic, 0)).get(TopicPartition(topic, 0)) == records


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("option", "kills", "records"),
    [
        ("at-least-once", 2, 1000),
        *(pytest.param(option, 30, 6000, marks=pytest.mark.slow) for option in PROGRAMS),
    ],
)
def test_counts_of_lost_and_doubled_records(
    request: pytest.FixtureRequest,
    servers: str,
    make_topic: Callable[[int], str],
    read_all: Callable[[str], list[Message]],
    tmp_path: Path,
    option: str,
    kills: int,
    records: int,
) -> None:
    topic, output, name, path = make_topic(1), make_topic(1), group(), tmp_path / "results"
    fill(servers, topic, numbers(0, records))
    database = request.getfixturevalue("database") if option == "postgresql" else ""
    if database:
        with psycopg.connect(database) as connection:
            connection.execute("DROP TABLE IF EXISTS results")
            connection.execute("CREATE TABLE results (value TEXT)")
    program = PROGRAMS[option].format(
        topic=topic,
        output=output,
        servers=servers,
        name=name,
        path=str(path),
        delivery=option,
        database=database,
    )
    seed = int.from_bytes(os.urandom(4), "big")
    chance = random.Random(seed)

    def count() -> int:
        return len(results(option, path, output, read_all, database))

    for _ in range(kills):
        before = count()
        if before >= records:
            break
        with subprocess.Popen([sys.executable, "-c", program]) as process:
            try:
                until(lambda: count() > before, "work")  # noqa: B023
                assert process.poll() is None, "it ended by itself"
                moment = time.monotonic() + chance.random() * 0.12
                until(lambda: time.monotonic() > moment, "the moment")  # noqa: B023
            finally:
                process.kill()
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            if option in ("sqlite", "postgresql"):
                until(lambda: count() >= records, "end", 2 * PATIENCE)
            else:
                until(lambda: finished(servers, name, topic, records), "end", 2 * PATIENCE)
            moment = time.monotonic() + 0.5
            until(lambda: time.monotonic() > moment, "last records")
        finally:
            process.kill()
    counts = Counter(results(option, path, output, read_all, database))
    lost = sum(number not in counts for number in numbers(0, records))
    doubled = sum(times - 1 for times in counts.values())
    print(f"{option}: {kills} kills, {lost} lost, {doubled} doubled (seed {seed})")
    if option != "at-most-once":
        assert lost == 0
    if not option.startswith("at-least-once"):
        assert doubled == 0
