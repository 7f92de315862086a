"""DescribeLogDirs (35): how much each partition takes on disk, and how much is left there."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.ports import DirectoryAccess, PartitionAccess
from ottla.broker.request_scheduler import Steps
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_PAUSE_AFTER = 200


class LogDirAccess(DirectoryAccess, PartitionAccess, Protocol):
    """The data folder and the partitions in it."""


def describe_log_dirs(
    broker: LogDirAccess, request: DescribeLogDirsRequest, context: RequestContext
) -> Steps[DescribeLogDirsResponse]:
    """Null topics ask for all; partitions that are not here are left out, as Kafka does."""
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = set()
        for topic in request.topics:
            wanted.update((topic.topic, index) for index in topic.partitions)
            yield
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for number, partition in enumerate(list(broker.replicas)):
        if not number % _PAUSE_AFTER:
            yield
        if wanted is None or (partition.topic, partition.index) in wanted:
            topics.setdefault(partition.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=partition.index,
                    partition_size=partition.size,
                    offset_lag=max(partition.high_watermark - partition.end_offset, 0),
                )
            )
    total, usable = broker.directory.space()
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=str(broker.directory.path),
                topics=[DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()],
                total_bytes=total,
                usable_bytes=usable,
            )
        ]
    )
