"""Lookups by time whose answers lie deep in large batches."""

from __future__ import annotations

import gzip
from functools import cache
from threading import Thread

from attacks.attack import MB, Target, attack
from attacks.forged import ZSTD, batch, produce_request, record, smallest_records, zstd
from ottla.protocol.compression import compress
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

_TOPICS = [f"t{number}" for number in range(5)]
_RECORDS = 100_000
_NOW = 1_700_000_000_000


@cache
def _last_one_is_newest() -> bytes:
    """Records of one time, except for the last, which is a millisecond younger."""
    return zstd(smallest_records(_RECORDS - 1) + record(_RECORDS - 1, 1, None, None))


def _store_large_batches(target: Target) -> None:
    for topic in _TOPICS:
        target.create_topic(topic)
        large = batch(
            _last_one_is_newest(), count=_RECORDS, now=_NOW, attributes=ZSTD, max_timestamp=_NOW + 1
        )
        with target.client() as client:
            answer = client.call(produce_request(topic, large), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def _look_up(target: Target, times: int) -> None:
    topics = [
        ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=_NOW + 1)])
        for topic in _TOPICS
    ]
    with target.client() as client:
        for _ in range(times):
            answer = client.call(ListOffsetsRequest(replica_id=-1, topics=topics), 5)
            found = [(t.partitions[0].offset, t.partitions[0].timestamp) for t in answer.topics]
            assert found == [(_RECORDS - 1, _NOW + 1)] * len(_TOPICS)


@attack(
    "ListOffsets by time over five batches of 100,000 records, two clients",
    prepare=_store_large_batches,
    memory=64 * MB,
    kafka_takes_it=True,
)
def lookups_in_large_batches(target: Target) -> None:
    failures: list[BaseException] = []

    def look_up() -> None:
        try:
            _look_up(target, 1)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            failures.append(error)

    threads = [Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures


_GZIP, _SNAPPY = 1, 2
_LYING_BATCHES = 99


def _tiny_members() -> bytes:
    """62 KB of empty gzip members before ten records."""
    return gzip.compress(b"", mtime=0) * 3100 + gzip.compress(smallest_records(10))


def _tiny_blocks() -> bytes:
    """60 KB of empty snappy blocks in the framing of the Java library."""
    return compress(_SNAPPY, b"") + b"\0\0\0\x01\0" * 12_000


def _store_batches_with_lying_headers(target: Target) -> None:
    """Small batches that are costly to open, and whose headers promise a record that they do not hold."""
    for topic, body, codec in (("gzip", _tiny_members(), _GZIP), ("snappy", _tiny_blocks(), _SNAPPY)):
        target.create_topic(topic)
        lying = batch(body, count=10, now=_NOW, attributes=codec, max_timestamp=_NOW + 60_000)
        with target.client() as client:
            for _ in range(_LYING_BATCHES):
                answer = client.call(produce_request(topic, lying), 9)
                assert answer.responses[0].partition_responses[0].error_code == 0


@attack(
    "ListOffsets by time over 99 batches of thousands of empty gzip members or snappy blocks",
    prepare=_store_batches_with_lying_headers,
)
def lookups_in_batches_of_tiny_parts(target: Target) -> None:
    with target.client() as client:
        for topic in ("gzip", "snappy") * 2:
            wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=_NOW + 1)])
            answer = client.call(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 5)
            assert answer.topics[0].partitions[0].error_code == 0
