"""Lookups by time whose answers lie deep in large batches."""

from __future__ import annotations

from functools import cache
from threading import Thread

from attacks.attack import MB, Target, attack
from attacks.forged import ZSTD, batch, produce_request, record, smallest_records, zstd
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
