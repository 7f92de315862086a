"""Damaged files under a running or starting broker, as clients and operators see it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.testing
from ottla.protocol.batches import headers
from ottla.protocol.errors import ApiError
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.consume import Consumer, Damaged
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker

RECORDS = 61


def produce(wire: Wire, topic: str) -> None:
    for number in range(RECORDS):
        batch = bytes(encode_batch([Record(0, int(time.time() * 1000), b"key", b"value %d" % number, [])]))
        data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
        answer = wire.call(ProduceRequest(acks=1, timeout_ms=5000, topic_data=data), version=9)
        assert not answer.responses[0].partition_responses[0].error_code


def consume(broker: InProcessBroker, topic: str, partition_max_bytes: int = 1 << 20) -> list[int]:
    """The offsets of all records of a topic, as `ottla consume` reads them."""
    with Wire(broker.bootstrap_servers) as wire:
        consumer = Consumer(
            wire, topic, {0: 0}, {0: RECORDS}, timeout=0.5, partition_max_bytes=partition_max_bytes
        )
        return [record.offset for _, record in consumer]


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics={"damaged": 1, "sound": 1}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            produce(wire, "damaged")
            produce(wire, "sound")
        broker.restart()  # or readers would be served from what the broker remembers of its last appends
        yield broker


def flip(path: Path, position: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


@pytest.mark.parametrize("partition_max_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize(
    ("byte", "mask"), [(8, 0x40), (10, 1), (11, 1), (0, 0x20), (4, 1), (6, 1), (7, 1), (7, 0x20), (70, 1)]
)
def test_a_consumer_of_a_damaged_batch_ends_with_an_error_and_not_with_success(
    broker: InProcessBroker, byte: int, mask: int, partition_max_bytes: int
) -> None:
    path = broker.data / "damaged-0" / "00000000000000000000.log"
    tenth = [position for position, _ in headers(path.read_bytes())][10]
    flip(path, tenth + byte, mask)
    with pytest.raises((ApiError, Damaged)) as told:
        consume(broker, "damaged", partition_max_bytes)
    assert "damaged" in str(told.value) or "KAFKA_STORAGE_ERROR" in repr(told.value)
    assert consume(broker, "sound") == list(range(RECORDS))


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_flipped_bit_in_a_topic_id_deletes_no_records(broker: InProcessBroker, ending: str) -> None:
    path = broker.data / "damaged-0" / "partition.metadata"
    data = path.read_bytes()
    for position in range(len(data) - 22, len(data), 4):
        getattr(broker, ending)()
        flip(path, position, 1)
        broker.start()
        assert consume(broker, "damaged") == list(range(RECORDS))
        assert path.read_bytes() == data


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_missing_segment_takes_its_partition_offline_and_the_log_names_it(
    broker: InProcessBroker, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    getattr(broker, ending)()
    (broker.data / "damaged-0" / "00000000000000000000.log").unlink()
    broker.start()
    assert broker.broker is not None
    assert broker.broker.directory.logs["damaged", 0].failure is not None
    assert str(broker.data / "damaged-0") in caplog.text
    assert consume(broker, "sound") == list(range(RECORDS))


def test_a_registry_restored_from_an_older_copy_deletes_no_records(broker: InProcessBroker) -> None:
    broker.stop()
    copy = {path: path.read_bytes() for path in broker.data.glob("registry.sqlite*")}
    broker.start()
    broker.create_topic("later", 1)
    with Wire(broker.bootstrap_servers) as wire:
        produce(wire, "later")
    broker.stop()
    newer = {path: path.read_bytes() for path in broker.data.glob("registry.sqlite*")}
    for path, content in copy.items():
        path.write_bytes(content)
    broker.restart()
    assert not (broker.data / "later-0").exists()
    broker.stop()
    (stray,) = broker.data.glob("later-0.*-stray")
    stray.rename(broker.data / "later-0")
    for path, content in newer.items():
        path.write_bytes(content)
    broker.start()
    assert consume(broker, "later") == list(range(RECORDS))
    assert consume(broker, "sound") == list(range(RECORDS))
