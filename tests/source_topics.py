"""What the tests of the Spark source do to topics: write, delete from the front, wait for something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol_client.group_offsets import committed_offsets
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire, check


def write(
    bootstrap: str,
    topic: str,
    values: Iterable[str],
    *,
    partition: int | None = 0,
    timestamp: int | None = None,
    key: str | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    batch_bytes: int = 512 << 10,
) -> None:
    """Records with these values, at `timestamp` in ms (now when None)."""
    with Wire(bootstrap) as wire, Producer(wire, topic, create=False, batch_bytes=batch_bytes) as producer:
        for value in values:
            producer.add(
                None if key is None else key.encode(),
                value.encode(),
                headers=list(headers),
                timestamp=timestamp,
                partition=partition,
            )


def delete_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """What retention does to a partition: its first records are gone."""
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
    )
    with Wire(bootstrap) as wire:
        (leader,) = [p.leader_id for p in wire.topic(topic).partitions if p.partition_index == partition]
        answer = wire.call(request, node=leader)
        check(answer.topics[0].partitions[0].error_code)


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    with Wire(bootstrap) as wire:
        return {place: found.offset for place, found in committed_offsets(wire, group).items()}


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
