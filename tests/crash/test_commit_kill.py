"""SIGKILL at every step of the end of a transaction: before and after each write of the broker's process.

To end a transaction a broker writes its outcome, a marker to each partition and to `__consumer_offsets`, and
that it is complete. Once the outcome is in the log, the transaction is, for all partitions: a broker that
starts again writes the markers that are missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from conformance.group_member import until
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import LATEST, list_offsets
from ottla.protocol_client.wire import Wire
from raw_client import RawClient
from wire_producer import WireProducer

TOPIC, PARTITIONS = "t", 2
DEATH = Path(__file__).with_name("death_at_write")
WRITES = PARTITIONS + 2
"""Of the end of a transaction: its outcome, the markers, that it is complete."""
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@pytest.fixture
def death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """While this file is there, brokers die after as many writes as it says."""
    file = tmp_path / "death"
    places = [str(DEATH), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setenv("OTTLA_TEST_DEATH", str(file))
    yield file


def create_topic(broker: BrokerProcess) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    with RawClient(broker.bootstrap_servers, timeout=60) as client:
        answer = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
    assert answer.topics[0].error_code == 0


def committed(broker: BrokerProcess) -> list[list[bytes]]:
    """What each partition has for readers of committed records, up to its end: no transaction is open."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    with Wire(broker.bootstrap_servers) as wire:
        ends = list_offsets(wire, TOPIC, dict.fromkeys(range(PARTITIONS), LATEST), timeout=60)
        reader = Consumer(wire, TOPIC, dict.fromkeys(ends, 0), ends, read_committed=True, timeout=60)
        for index, record in reader:
            found[index].append(record.value or b"")
    return found


def transact(
    broker: BrokerProcess, value: bytes, death: Path, *, writes: int, commit: bool, second: bool
) -> bool:
    """A transaction whose broker dies after so many writes of its end; whether the end was acknowledged."""
    with RawClient(broker.bootstrap_servers, timeout=60) as client:
        producer = WireProducer(client, second=second)
        assert producer.init() == 0
        for partition in range(PARTITIONS):
            assert producer.send(TOPIC, value, partition) == 0
        death.write_text(str(writes))
        try:
            acknowledged = producer.end(commit=commit) == 0
        except (ConnectionError, OSError):
            acknowledged = False
        if writes < WRITES:
            assert broker.process is not None
            broker.process.wait(60)
        else:
            until(lambda: producer.described().transaction_state.startswith("Complete"), producer.described)
    death.unlink()
    broker.kill()
    return acknowledged


@pytest.mark.parametrize(
    ("commit", "second"),
    [
        pytest.param(True, True, id="commit, second protocol"),
        pytest.param(True, False, id="commit, first protocol", marks=pytest.mark.slow),
        pytest.param(False, True, id="abort, second protocol", marks=pytest.mark.slow),
        pytest.param(False, False, id="abort, first protocol", marks=pytest.mark.slow),
    ],
)
def test_a_transaction_is_whole_wherever_its_end_is_cut_off(
    tmp_path: Path, death: Path, commit: bool, second: bool
) -> None:
    expected: list[bytes] = []
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        create_topic(broker)
        for writes in range(WRITES + 1):
            value = b"%d" % writes
            acknowledged = transact(broker, value, death, writes=writes, commit=commit, second=second)
            assert writes or not acknowledged, "nothing was written, and yet it was acknowledged"
            if commit and writes:
                expected.append(value)  # its outcome is in the log
            broker.start()
            if not writes:  # nobody knows that it was to end: the next producer of the id aborts it
                with RawClient(broker.bootstrap_servers, timeout=60) as client:
                    assert WireProducer(client, second=second).init() == 0
            until(lambda: committed(broker) == [expected] * PARTITIONS, lambda: f"{committed(broker)}")
