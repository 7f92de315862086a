"""A folder with open, committed and aborted transactions moves from Kafka to Ottla and back."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from ottla.storage.replay import transactions_of
from unit.storage.committed import read_committed
from unit.storage.logs import from_producer
from unit.storage.test_kafka_reads_our_files import dump
from unit.storage.test_kafka_takes_our_folder import PATIENCE, create_topic, our_turn

sys.path.insert(0, str(Path(__file__).parents[3]))
from bench.peers.kafka import kafka_peer

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "t"
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
}
OURS = 9_000_000  # a producer id that Kafka has not given to anybody


def value(number: int) -> bytes:
    return b"%06d" % number + b"." * 10_000


def produce(producer: object, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.produce(TOPIC, value(number))  # type: ignore[attr-defined]
    assert producer.flush(PATIENCE) == 0  # type: ignore[attr-defined]


def transactions_of_kafka(bootstrap: str) -> list[bytes]:
    """Two producers whose transactions overlap, over several segments; the values that were committed.

    One of them leaves its last transaction open.
    """
    producers = [
        confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"p{n}", "transaction.timeout.ms": 800_000}
        )
        for n in range(2)
    ]
    for producer in producers:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
    written: list[tuple[int, int]] = []  # transaction, number
    committed: set[int] = set()
    running = [0, 1]
    for step in range(40):
        turn = step % 2
        first = len(written)
        produce(producers[turn], first, 6)
        written += [(running[turn], first + n) for n in range(6)]
        if step == 39:
            break
        if step % 3:
            commit = step % 4 != 1
            end = producers[turn].commit_transaction if commit else producers[turn].abort_transaction
            end(PATIENCE)
            if commit:
                committed.add(running[turn])
            running[turn] = step + 2
            producers[turn].begin_transaction()
    producers[0].commit_transaction(PATIENCE)
    committed.add(running[0])
    assert len(committed) > 5
    return [value(number) for transaction, number in written if transaction in committed]


def consume_committed(bootstrap: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"no end after {len(found)} records"
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                found.append(message.value())
        return found
    finally:
        consumer.close()


def test_kafka_and_ottla_read_the_same_transactions_from_one_folder(tmp_path: Path) -> None:
    node = tmp_path / "node-1"
    with kafka_peer(SETTINGS, data=tmp_path) as peer:
        create_topic(peer.bootstrap, TOPIC)
        committed = transactions_of_kafka(peer.bootstrap)
    of_kafka = {path.name: path.read_bytes() for path in sorted((node / f"{TOPIC}-0").glob("*.txnindex"))}
    assert len(of_kafka) > 1, "several segments have markers that abort"

    with our_turn(node) as directory:
        log = directory.logs[TOPIC, 0]
        (open_one,) = [state for state in log.producers.active if state.transaction_start >= 0]
        stable = log.last_stable_offset(log.end_offset)
        assert stable == open_one.transaction_start < log.end_offset
        assert read_committed(log, max_bytes=1 << 20) == committed
        rows = log._row
        for slot, segment in enumerate(rows.segments):
            rebuilt = transactions_of(rows.segments, slot, rows.snapshots, log.name, 0).encode()
            name = segment.path.with_suffix(".txnindex").name
            assert rebuilt == of_kafka.get(name, b""), "what we would have written ourselves"

        epoch = log.leader_epochs.latest
        log.append_marker(
            open_one.producer_id,
            open_one.epoch,
            epoch,
            commit=False,
            coordinator_epoch=open_one.coordinator_epoch,
        )
        for number in range(30):
            data = from_producer(
                number * 4,
                4,
                producer=OURS,
                value=value(10_000 + number),
                timestamp=int(time.time() * 1000),
                transactional=True,
            )
            log.append(data, epoch)
            if number % 2:
                aborts = number % 4 == 1
                log.append_marker(OURS, 0, epoch, commit=not aborts, coordinator_epoch=0)
                if not aborts:
                    committed += [value(10_000 + n) for n in (number - 1, number) for _ in range(4)]
        assert read_committed(log, max_bytes=1 << 20) == committed

    ours = sorted((node / f"{TOPIC}-0").glob("*.txnindex"))
    assert len(ours) > len(of_kafka)
    out = dump("--files", ",".join(map(str, ours)))
    assert out.count(f"producerId: {OURS}") == 8
    with kafka_peer(SETTINGS, data=tmp_path) as peer:
        assert consume_committed(peer.bootstrap, len(committed)) == committed
