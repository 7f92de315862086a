"""What a producer may not do to others, however its batches are made; the broker is a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from attacks.attack import Target
from attacks.forged import ZSTD, batch, now_ms, produce_request, record, smallest_records, zstd
from broker_process import OTTLA, BrokerProcess
from ottla.protocol.batches import DELETE_HORIZON, BatchHeader, crc_matches, headers
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import decode_batch
from raw_client import RawClient

_VERSION = 9
_INVALID_RECORD = 87
_INVALID_REQUEST = 42
_REQUEST_TIMED_OUT = 7
_INVALID_TIMESTAMP = 32
_MAX_TIMESTAMP = -3
_LARGE = 20_000
"""Records of a batch that is opened beside the event loop."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with BrokerProcess(folder) as broker:
        assert broker.process is not None
        yield Target(broker.bootstrap_servers, broker.process.pid)
        assert "Traceback" not in broker.output.read_text()


_made = 0


def new_topic(target: Target, **configs: Any) -> str:
    global _made
    _made += 1
    name = f"t{_made}"
    target.create_topic(name, **configs)
    return name


def produce(target: Target, topic: str, records: bytes | bytearray) -> Any:
    with target.client() as client:
        answer = client.call(produce_request(topic, records), _VERSION)
    return answer.responses[0].partition_responses[0]


def stored(target: Target, topic: str) -> list[BatchHeader]:
    with target.client() as client:
        records = client.fetch(topic, 0).records
    found = list(headers(records))
    assert all(crc_matches(records, position, header) for position, header in found)
    return [header for _, header in found]


def list_offset(target: Target, topic: str, timestamp: int) -> tuple[int, int]:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    with target.client() as client:
        found = client.call(request, 7).topics[0].partitions[0]
    return found.offset, found.timestamp


@pytest.mark.parametrize("count", [2, _LARGE])
def test_a_missing_max_timestamp_is_computed_from_the_records(target: Target, count: int) -> None:
    """Old clients do; with -1 in the header their records were older than everything for retention."""
    topic = new_topic(target)
    now = now_ms()
    body = smallest_records(count - 1) + record(count - 1, 5000)
    assert produce(target, topic, batch(body, count=count, now=now, max_timestamp=-1)).error_code == 0
    assert [header.max_timestamp for header in stored(target, topic)] == [now + 5000]
    assert list_offset(target, topic, _MAX_TIMESTAMP) == (count - 1, now + 5000)
    assert list_offset(target, topic, now + 1) == (count - 1, now + 5000)


def test_future_timestamps_are_refused_without_a_max_timestamp_too(target: Target) -> None:
    topic = new_topic(target)
    ahead = batch(record(0, 10 * 86_400_000), max_timestamp=-1)
    assert produce(target, topic, ahead).error_code == _INVALID_TIMESTAMP


@pytest.mark.parametrize(
    "body",
    [record(-1), record(1_000_000), b"\xa7" * 60],
    ids=["negative-delta", "delta-of-a-million", "random-bytes"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_compacted_topic_refuses_records_that_compaction_could_not_read(
    target: Target, body: bytes, compressed: bool
) -> None:
    topic = new_topic(target, cleanup_policy="compact")
    packed, attributes = (zstd(body), ZSTD) if compressed else (body, 0)
    assert produce(target, topic, batch(packed, attributes=attributes)).error_code == _INVALID_RECORD
    assert produce(target, topic, batch(record())).base_offset == 0


def test_a_tiny_batch_cannot_claim_millions_of_offsets(target: Target) -> None:
    topic = new_topic(target)
    for count in (19_000_000, 900_000):
        tiny = batch(b"\0", count=count, attributes=ZSTD)
        assert produce(target, topic, tiny).error_code == _INVALID_RECORD
    assert produce(target, topic, batch(record())).base_offset == 0


def test_a_delete_horizon_set_by_a_client_is_cleared(target: Target) -> None:
    topic = new_topic(target, cleanup_policy="compact")
    assert produce(target, topic, batch(record(), attributes=DELETE_HORIZON)).error_code == 0
    assert [header.attributes for header in stored(target, topic)] == [0]


def _sequenced(sequence: int, count: int) -> bytearray:
    return batch(
        smallest_records(count, key=b"k"),
        count=count,
        producer_id=77,
        producer_epoch=0,
        base_sequence=sequence,
    )


def test_a_small_batch_does_not_overtake_a_large_one_before_it(target: Target) -> None:
    """Requests of one connection are answered in their order, though the first is opened in a thread."""
    topic = new_topic(target, cleanup_policy="compact")
    with target.client() as client:
        sent = [
            _sequenced(0, _LARGE),
            _sequenced(_LARGE, 1),
            _sequenced(0, _LARGE),
            _sequenced(_LARGE + 1, 2),
        ]
        client.socket.sendall(b"".join(client.frame(produce_request(topic, b), _VERSION) for b in sent))
        answers = [client.receive().responses[0].partition_responses[0] for _ in sent]
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, 0), (0, _LARGE), (0, 0), (0, _LARGE + 1)]


def _entry(index: int, count: int = 1) -> PartitionProduceData:
    return PartitionProduceData(index=index, records=batch(smallest_records(count), count=count))


def _named(topic: str, *entries: PartitionProduceData) -> TopicProduceData:
    return TopicProduceData(name=topic, partition_data=list(entries))


def _repeats(topic: str) -> dict[str, list[TopicProduceData]]:
    """Requests that name partition 0 more than once and partition 1 once."""
    return {
        "in one topic": [_named(topic, _entry(0), _entry(1), _entry(0, 2))],
        "in a topic named twice": [_named(topic, _entry(0), _entry(1)), _named(topic, _entry(0, 2))],
        "thousands of times": [_named(topic, *[_entry(0)] * 3_000, _entry(1), *[_entry(0)] * 3_000)],
    }


@pytest.mark.parametrize("repeated", _repeats("").keys())
def test_a_partition_named_more_than_once_is_refused_and_the_others_are_served(
    target: Target, repeated: str
) -> None:
    topic = new_topic(target, partitions=2)
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=_repeats(topic)[repeated])
    with target.client() as client:
        answer = client.call(request, _VERSION)
        (only,) = answer.responses
        told = sorted((a.index, a.error_code, a.base_offset) for a in only.partition_responses)
        assert told == [(0, _INVALID_REQUEST, -1), (1, 0, 0)]
        messages = {a.error_message for a in only.partition_responses if a.error_code}
        assert messages == {"the partition is named more than once in the request"}
        assert [client.fetch(topic, 0, partition=n).high_watermark for n in (0, 1)] == [0, 1]


def test_a_topic_named_twice_with_different_partitions_is_served(target: Target) -> None:
    topic = new_topic(target, partitions=2)
    topics = [_named(topic, _entry(0)), _named(topic, _entry(1))]
    with target.client() as client:
        answer = client.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), _VERSION)
        (only,) = answer.responses
        assert [(a.index, a.error_code) for a in only.partition_responses] == [(0, 0), (1, 0)]


def test_acks_0_that_names_a_partition_twice_closes_the_connection(target: Target) -> None:
    topic = new_topic(target)
    request = ProduceRequest(acks=0, timeout_ms=30_000, topic_data=[_named(topic, _entry(0), _entry(0))])
    with target.client() as client:
        client.send(request, _VERSION)
        assert client.is_closed(within=30)
    with target.client() as client:
        assert client.fetch(topic, 0).high_watermark == 0


_MANY = 700
"""Partitions of a request that is worked on in slices."""


def _to_all(topic: str, *, size: int, acks: int = -1) -> ProduceRequest:
    """A batch for each of many partitions, each with its partition's number in the value."""
    batches = [batch(record(value=b"%d:" % n + bytes(size))) for n in range(_MANY)]
    entries = [PartitionProduceData(index=n, records=records) for n, records in enumerate(batches)]
    topics = [TopicProduceData(name=topic, partition_data=entries)]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics)


@pytest.fixture(scope="module")
def wide_topic(target: Target) -> str:
    target.create_topic("wide", partitions=_MANY)
    return "wide"


def _read_all(target: Target, topic: str, offset: int) -> list[bytes]:
    """The value of the record at `offset` in each partition, up to its colon; empty where there is none."""
    with target.client() as client:
        answers = [client.fetch(topic, offset, partition=n) for n in range(_MANY)]
    values = []
    for answer in answers:
        assert answer.error_code == 0
        records = decode_batch(memoryview(answer.records), max_size=1 << 20) if answer.records else []
        values.append((records[0].value or b"").partition(b":")[0] if records else b"")
    return values


def test_a_request_for_many_partitions_appends_each_batch_to_its_partition(
    target: Target, wide_topic: str
) -> None:
    """The records are written from the frame they came in, though other requests come in between."""
    with target.client() as client, target.client() as other:
        for size in (
            0,
            200,
        ):  # a frame below and one above the size from which frames have memory of their own
            client.send(_to_all(wide_topic, size=size), _VERSION)
            client.socket.sendall(client.frame(produce_request(wide_topic, batch(record())), _VERSION))
            for _ in range(20):
                other.call(ApiVersionsRequest(client_software_name="x" * 10_000), 3)
            answer = client.receive()
            assert [(a.index, a.error_code) for a in answer.responses[0].partition_responses] == [
                (n, 0) for n in range(_MANY)
            ]
            offset = answer.responses[0].partition_responses[-1].base_offset
            behind = client.receive().responses[0].partition_responses[0]
            assert behind.error_code == 0
            assert behind.base_offset > answer.responses[0].partition_responses[0].base_offset
            assert _read_all(target, wide_topic, offset)[1:] == [b"%d" % n for n in range(1, _MANY)]


def test_records_for_many_partitions_are_appended_after_a_disconnect(target: Target, wide_topic: str) -> None:
    with target.client() as client:
        before = [client.fetch(wide_topic, 0, partition=n).high_watermark for n in range(_MANY)]
        client.send(_to_all(wide_topic, size=200, acks=0), _VERSION)
    with target.client() as client:
        for n in range(_MANY):
            deadline = time.monotonic() + 30
            while client.fetch(wide_topic, 0, partition=n, max_wait_ms=10).high_watermark == before[n]:
                assert time.monotonic() < deadline, f"nothing was appended to partition {n}"


def test_acks_0_stays_in_order_and_closes_the_connection_when_a_large_batch_is_refused(
    target: Target,
) -> None:
    topic = new_topic(target, cleanup_policy="compact")
    with target.client() as client:
        client.socket.sendall(client.frame(produce_request(topic, _sequenced(0, _LARGE), acks=0), _VERSION))
        client._sent.clear()
        answer = client.call(produce_request(topic, _sequenced(_LARGE, 1)), _VERSION)
        assert answer.responses[0].partition_responses[0].base_offset == _LARGE
        keyless = batch(smallest_records(_LARGE), count=_LARGE)
        client.send(produce_request(topic, keyless, acks=0), _VERSION)
        assert client.is_closed(within=30)


def test_a_batch_in_inspection_is_appended_after_a_disconnect(target: Target) -> None:
    topic = new_topic(target, cleanup_policy="compact")
    with target.client() as client:
        client.send(produce_request(topic, _sequenced(0, _LARGE)), _VERSION)
    with target.client() as client:
        # The other connection's bytes may still be on their way: ask until they are in.
        for _ in range(10_000):
            if client.fetch(topic, 0, max_wait_ms=10).high_watermark == _LARGE:
                return
    pytest.fail("the batch was not appended")


def test_pipelined_acks_0_batches_are_all_appended_after_a_disconnect(
    target: Target,
) -> None:
    """Each batch is opened in a thread, and the end of the stream is there before the first is done."""
    topic = new_topic(target, cleanup_policy="compact")
    clients, batches, count = 10, 5, 400
    for _ in range(clients):
        with target.client() as client:
            sent = [batch(smallest_records(count, key=b"k"), count=count) for _ in range(batches)]
            frames = [client.frame(produce_request(topic, each, acks=0), _VERSION) for each in sent]
            client.socket.sendall(b"".join(frames))
    with target.client() as client:
        deadline = time.monotonic() + 20
        while (end := client.fetch(topic, 0, max_bytes=1, max_wait_ms=10).high_watermark) < (
            clients * batches * count
        ):
            assert time.monotonic() < deadline, f"{end} of {clients * batches * count} records were appended"


def _keep_the_thread_busy(target: Target, client: RawClient, topic: str) -> None:
    """Have a batch opened that takes about a second, and return when it is begun."""
    client.send(produce_request(topic, batch(zstd(record(headers=900_000)), attributes=ZSTD)), _VERSION)
    with target.client() as other:
        other.call(ApiVersionsRequest(), 0)


def test_a_batch_waiting_for_inspection_is_dropped_after_a_disconnect(target: Target) -> None:
    """It was never acknowledged, and a producer that lost its connection sends it again."""
    slow, topic = new_topic(target, cleanup_policy="compact"), new_topic(target, cleanup_policy="compact")
    with target.client() as busy, target.client() as last:
        _keep_the_thread_busy(target, busy, slow)
        with target.client() as leaving:
            leaving.send(
                produce_request(topic, batch(smallest_records(400, key=b""), count=400), acks=1), _VERSION
            )
        with target.client() as leaving:
            leaving.send(
                produce_request(topic, batch(smallest_records(500, key=b""), count=500), acks=0), _VERSION
            )
        with target.client() as other:
            other.call(ApiVersionsRequest(), 0)
        answer = last.call(produce_request(topic, batch(smallest_records(600, key=b""), count=600)), _VERSION)
        assert busy.receive().responses[0].partition_responses[0].error_code == 0
    assert answer.responses[0].partition_responses[0].base_offset == 500, "only acks=0 was appended before"


def test_a_retriable_error_is_returned_while_too_many_batches_wait_for_inspection(tmp_path: Path) -> None:
    large = batch(b"".join(record(n, 0, b"k", bytes(3_000)) for n in range(301)), count=301)
    settings = {"queued.max.request.bytes": 16 << 20, "socket.request.max.bytes": 8 << 20}
    with BrokerProcess(tmp_path, settings) as broker, ExitStack() as clients:
        assert broker.process is not None
        target = Target(broker.bootstrap_servers, broker.process.pid)
        slow, topic = new_topic(target, cleanup_policy="compact"), new_topic(target, cleanup_policy="compact")
        busy = clients.enter_context(target.client())
        producers = [clients.enter_context(target.client()) for _ in range(6)]
        _keep_the_thread_busy(target, busy, slow)
        for producer in producers:
            producer.send(produce_request(topic, large), _VERSION)
        told = 0
        deadline = time.monotonic() + 60
        while producers:
            assert time.monotonic() < deadline
            producer = producers.pop(-1)
            answer = producer.receive().responses[0].partition_responses[0]
            if answer.error_code:
                assert answer.error_code == _REQUEST_TIMED_OUT
                assert "too many batches wait to be opened" in answer.error_message
                told += 1
                producer.send(produce_request(topic, large), _VERSION)
                producers.append(producer)
        assert told
        with target.client() as client:
            assert client.fetch(topic, 0).high_watermark == 6 * 301
        _keep_the_thread_busy(target, busy, slow)
        unacknowledged = [clients.enter_context(target.client()) for _ in range(6)]
        for producer in unacknowledged:
            producer.send(produce_request(topic, large, acks=0), _VERSION)
        assert unacknowledged[-1].is_closed(within=30)
        assert "too many batches wait to be opened" in broker.output.read_text()


def test_the_list_of_refused_records_in_a_response_is_bounded(target: Target) -> None:
    topic = new_topic(target, cleanup_policy="compact")
    answer = produce(target, topic, batch(smallest_records(_LARGE), count=_LARGE))
    assert answer.error_code == _INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == list(range(100))
    assert f"{_LARGE} records have no key" in answer.error_message


def test_ottla_consume_reports_a_batch_of_random_bytes_and_continues(target: Target) -> None:
    topic = new_topic(target)
    for body in (record(value=b"before"), b"\xa7" * 60, record(value=b"behind")):
        assert produce(target, topic, batch(body)).error_code == 0
    command = [str(OTTLA), "consume", topic, "-b", target.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["before", "behind"]
    assert done.returncode == 1
    assert f"partition 0 of topic '{topic}', batch at offset 1" in done.stderr
