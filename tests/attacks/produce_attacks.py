"""Produce requests whose batches are costly to look into, or that make the broker keep much."""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import ExitStack
from functools import cache
from typing import Any

from attacks.attack import MB, Target, attack
from attacks.forged import ZSTD, batch, now_ms, produce_request, record, smallest_records, zstd
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

_HOUR = 3_600_000
_INVALID_TIMESTAMP, _INVALID_RECORD = 32, 87
_VERSION = 9


def _produce(target: Target, topic: str, records: bytearray) -> Any:
    with target.client() as client:
        answer = client.call(produce_request(topic, records), _VERSION)
    return answer.responses[0].partition_responses[0]


@cache
def _many_records(count: int) -> bytes:
    return zstd(smallest_records(count, key=b""))


@attack(
    "19 million tiny compressed records in 12 KB, with a lying max timestamp",
    prepare=lambda t: _topic(t, "t"),
)
def nineteen_million_records(target: Target) -> None:
    # 19 million times 7 bytes, as a client would hide them; the bytes repeat, which no reader gets to see.
    bomb = zstd(bytes(19_000_000 * 7))
    answer = _produce(target, "t", batch(bomb, count=19_000_000, attributes=ZSTD, max_timestamp=-1))
    assert answer.error_code == _INVALID_RECORD


@attack("300,000 tiny compressed records without a max timestamp", prepare=lambda t: _topic(t, "t"))
def many_records_to_be_opened(target: Target) -> None:
    body = _many_records(300_000)
    answer = _produce(target, "t", batch(body, count=300_000, attributes=ZSTD, max_timestamp=-1))
    assert (answer.error_code, answer.base_offset) == (0, 0)


@attack(
    "300,000 tiny compressed records too far ahead", prepare=lambda t: _topic(t, "t"), kafka_takes_it=True
)
def many_records_too_far_ahead(target: Target) -> None:
    ahead = now_ms() + 25 * _HOUR
    body = _many_records(300_000)
    answer = _produce(target, "t", batch(body, count=300_000, now=ahead, attributes=ZSTD))
    assert answer.error_code == _INVALID_TIMESTAMP
    assert 0 < len(answer.record_errors) <= 100


@attack("an honest producer two hours ahead, 10,000-record batches", prepare=lambda t: _topic(t, "t"))
def an_honest_producer_two_hours_ahead(target: Target) -> None:
    body = smallest_records(10_000)
    for _ in range(10):
        answer = _produce(target, "t", batch(body, count=10_000, now=now_ms() + 2 * _HOUR))
        assert answer.error_code == _INVALID_TIMESTAMP
        assert 0 < len(answer.record_errors) <= 100


@attack(
    "300,000 tiny compressed records to a compacted topic",
    prepare=lambda t: _topic(t, "t", cleanup_policy="compact"),
)
def many_records_to_a_compacted_topic(target: Target) -> None:
    answer = _produce(target, "t", batch(_many_records(300_000), count=300_000, attributes=ZSTD))
    assert (answer.error_code, answer.base_offset) == (0, 0)


@attack(
    "records with hundreds of thousands of headers to a compacted topic",
    prepare=lambda t: _topic(t, "t", cleanup_policy="compact"),
)
def many_headers(target: Target) -> None:
    body = zstd(record(headers=900_000))
    assert _produce(target, "t", batch(body, attributes=ZSTD)).error_code == 0
    body = zstd(record(headers=1_100_000))
    assert _produce(target, "t", batch(body, attributes=ZSTD)).error_code == _INVALID_RECORD


@attack(
    "many small batches that have to be opened, pipelined",
    prepare=lambda t: _topic(t, "t", cleanup_policy="compact"),
)
def many_small_batches_to_be_opened(target: Target) -> None:
    request = produce_request("t", batch(zstd(smallest_records(300, key=b"")), count=300, attributes=ZSTD))
    with target.client() as client:
        client.socket.sendall(b"".join(client.frame(request, _VERSION) for _ in range(300)))
        for _ in range(300):
            assert client.receive().responses[0].partition_responses[0].error_code == 0


@attack(
    "a large batch to be compressed anew at the highest level",
    prepare=lambda t: _topic(t, "t", compression_type="zstd", compression_zstd_level=22),
    memory=256 * MB,
)
def a_large_batch_to_be_recompressed(target: Target) -> None:
    body = b"".join(record(n, 0, b"%d" % n, b"%x" % (n * 7919) * 20) for n in range(5_000))
    for _ in range(2):
        assert _produce(target, "t", batch(body[:], count=5_000)).error_code == 0


def _topic(target: Target, name: str, **configs: Any) -> None:
    target.create_topic(name, **configs)


def _two_topics(target: Target) -> None:
    _topic(target, "t", cleanup_policy="compact")
    _topic(target, "ordinary")


def _two_compacted_topics(target: Target) -> None:
    _topic(target, "t", cleanup_policy="compact")
    _topic(target, "other", cleanup_policy="compact")


@attack("12,000 invented producer ids", prepare=lambda t: _topic(t, "t", segment_bytes=1 << 20))
def many_producer_ids(target: Target) -> None:
    """Each would be remembered for a day, and all of them written down at each roll."""
    with target.client() as client:
        for first in range(1_000_000, 1_012_000, 500):
            requests = [
                produce_request(
                    "t", batch(record(), producer_id=p, producer_epoch=0, base_sequence=0), acks=1
                )
                for p in range(first, first + 500)
            ]
            client.socket.sendall(b"".join(client.frame(request, _VERSION) for request in requests))
            for _ in requests:
                assert client.receive().responses[0].partition_responses[0].error_code == 0
        answer = client.call(
            DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]), 0
        )
    assert len(answer.topics[0].partitions[0].active_producers) <= 10_000


@attack("batches whose timestamps are a week apart", prepare=lambda t: _topic(t, "t"))
def batches_a_week_apart(target: Target) -> None:
    week = 7 * 24 * _HOUR + 1
    first = now_ms() - 2_000 * week
    with target.client() as client:
        for start in range(0, 1_000, 100):
            requests = [
                produce_request("t", batch(record(), now=first + n * week)) for n in range(start, start + 100)
            ]
            client.socket.sendall(b"".join(client.frame(request, _VERSION) for request in requests))
            for _ in requests:
                assert client.receive().responses[0].partition_responses[0].error_code == 0


def _many_entries(topics: list[TopicProduceData]) -> ProduceRequest:
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


@attack("a Produce naming one partition 100,000 times", memory=256 * MB, prepare=lambda t: _topic(t, "t"))
def one_partition_many_times(target: Target) -> None:
    entry = PartitionProduceData(index=0, records=batch(record()))
    request = _many_entries([TopicProduceData(name="t", partition_data=[entry] * 100_000)])
    with target.client() as client:
        for _ in range(3):
            (answer,) = client.call(request, _VERSION).responses[0].partition_responses
            assert answer.error_code == ErrorCode.INVALID_REQUEST


@attack("a Produce naming 50,000 topics that do not exist", memory=256 * MB)
def many_topics_that_do_not_exist(target: Target) -> None:
    entry = PartitionProduceData(index=0, records=batch(record()))
    topics = [TopicProduceData(name=f"t{n}", partition_data=[entry]) for n in range(50_000)]
    with target.client() as client:
        answer = client.call(_many_entries(topics), _VERSION)
    assert len(answer.responses) == 50_000


@attack(
    "a Produce of batches to be opened to 500 partitions",
    prepare=lambda t: t.create_topic("t", partitions=500, cleanup_policy="compact"),
)
def batches_to_be_opened_to_many_partitions(target: Target) -> None:
    records = batch(zstd(smallest_records(300, key=b"")), count=300, attributes=ZSTD)
    entries = [PartitionProduceData(index=n, records=records) for n in range(500)]
    with target.client() as client:
        answer = client.call(_many_entries([TopicProduceData(name="t", partition_data=entries)]), _VERSION)
    assert {a.error_code for a in answer.responses[0].partition_responses} == {0}


@attack(
    "Produce requests with acks=0 to a compacted topic whose clients leave at once",
    prepare=_two_topics,
    settings={"queued.max.request.bytes": 16 * MB, "socket.request.max.bytes": 8 * MB},
    memory=16 * MB,
)
def clients_that_leave_batches_to_be_opened(target: Target) -> None:
    """What waits to be opened is bounded, and takes no memory from the producers of other topics."""
    body = zstd(smallest_records(60_000, key=b""))
    host, _, port = target.address.rpartition(":")
    with target.client() as client:
        frame = client.frame(
            produce_request("t", batch(body, count=60_000, attributes=ZSTD), acks=0), _VERSION
        )
    for _ in range(500):
        with socket.create_connection((host, int(port))) as leaving:
            leaving.sendall(frame)
    with target.client(timeout=10) as client:
        large = batch(record(0, 0, b"k", bytes(200_000)))
        answer = client.call(produce_request("ordinary", large), _VERSION)
    assert answer.responses[0].partition_responses[0].error_code == 0


@attack(
    "batches of 301 records that hold 90,000 headers, one after the other",
    prepare=_two_compacted_topics,
)
def batches_that_look_like_little_work(target: Target) -> None:
    """A batch with more records by its header is opened too, though such batches never end."""
    body = zstd(b"".join(record(n, 0, b"k", b"", headers=300) for n in range(301)))
    request = produce_request("t", batch(body, count=301, attributes=ZSTD))
    stop, begun = threading.Event(), threading.Semaphore(0)

    def one_after_the_other() -> None:
        with target.client() as client:
            while not stop.is_set():
                client.call(request, _VERSION)
                begun.release()

    attackers = [threading.Thread(target=one_after_the_other) for _ in range(4)]
    for one in attackers:
        one.start()
    try:
        for _ in range(4):
            assert begun.acquire(timeout=30)
        honest = b"".join(record(n, 0, b"%d" % n, b"v" * 100) for n in range(1_000))
        with target.client(timeout=15) as client:
            answer = client.call(produce_request("other", batch(honest, count=1_000)), _VERSION)
        assert answer.responses[0].partition_responses[0].error_code == 0
    finally:
        stop.set()
        for one in attackers:
            one.join()


@attack(
    "small batches to 16 partitions, to be compressed anew at the highest level, from four clients",
    prepare=lambda t: t.create_topic("t", partitions=16, compression_type="zstd", compression_zstd_level=22),
)
def small_batches_to_be_recompressed(target: Target) -> None:
    body = gzip.compress(b"".join(record(n, 0, b"k", bytes(40)) for n in range(300)))
    entries = [PartitionProduceData(index=n, records=batch(body, count=300, attributes=1)) for n in range(16)]
    request = _many_entries([TopicProduceData(name="t", partition_data=entries)])
    with ExitStack() as stack:
        clients = [stack.enter_context(target.client()) for _ in range(4)]
        for client in clients:
            client.send(request, _VERSION)
        for client in clients:
            answer = client.receive()
            assert {a.error_code for a in answer.responses[0].partition_responses} == {0}
