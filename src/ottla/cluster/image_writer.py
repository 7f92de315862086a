"""How the controller's decisions are written: committed to the registry first, then published as a delta.

Small changes share commits, so a thousand small topics cost as many syncs as their operations fill commits.
What a commit holds is in the image as soon as the commit is durable. The controller calls this under its
lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ottla.cluster import layout
from ottla.cluster.changes import Change, batches
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import (
    BrokerNode,
    ClusterImage,
    ConfigResource,
    ImageDelta,
    PartitionState,
    TopicImage,
)
from ottla.cluster.leadership import MAX_WRITE_BYTES, MAX_WRITE_OPERATIONS, Leadership, NotController
from ottla.cluster.registry import Operation, Set, Unavailable, operation_bytes
from ottla.protocol.errors import ApiError, ErrorCode

_log = logging.getLogger(__name__)

T = TypeVar("T")
PartitionChanges = Mapping[str, Mapping[int, PartitionState]]
"""New states, by topic and partition."""


class ImageWriter:
    def __init__(self, leadership: Leadership, feed: ImageFeed) -> None:
        self._leadership = leadership
        self._feed = feed

    @property
    def image(self) -> ClusterImage:
        return self._feed.current

    async def write_all(
        self, items: list[T | ApiError], change_for: Callable[[T], Change]
    ) -> list[T | ApiError]:
        """Writes the changes of the items that are not refused, sharing commits; refuses what failed."""
        results = list(items)
        batch: list[tuple[int, Change]] = []
        operations: list[Operation] = []
        size = 0

        async def flush() -> None:
            nonlocal batch, operations, size
            pending, batch, to_write, operations, size = batch, [], operations, [], 0
            failure = await self._write([change for _, change in pending], [to_write])
            for index, _ in pending:
                results[index] = failure or results[index]

        for index, item in enumerate(items):
            if isinstance(item, ApiError):
                continue
            change = change_for(item)
            if len(change.commits) > 1:
                results[index] = await self._write([change], change.commits) or item
                continue
            more = change.commits[0]
            more_bytes = sum(map(operation_bytes, more))
            if len(operations) + len(more) > MAX_WRITE_OPERATIONS or size + more_bytes > MAX_WRITE_BYTES:
                await flush()
            batch.append((index, change))
            operations += more
            size += more_bytes
        if batch:
            await flush()
        return results

    async def _write(self, changes: list[Change], commits: list[list[Operation]]) -> ApiError | None:
        written = 0
        try:
            for operations in commits:
                await self._leadership.write(operations)
                written += 1
        except NotController:
            return ApiError(ErrorCode.NOT_CONTROLLER)
        except Unavailable as error:
            if written:
                self._leadership.resign("a change is half done; the next election clears it away")
            return not_written(error)
        topics: dict[str, TopicImage | None] = {}
        partitions: dict[str, Mapping[int, PartitionState]] = {}
        configs: dict[ConfigResource, Mapping[str, str] | None] = {}
        for change in changes:
            topics.update(change.topics or {})
            partitions.update(change.partitions or {})
            configs.update(change.configs or {})
        self._feed.publish(replace(self._delta(), topics=topics, partitions=partitions, configs=configs))
        return None

    async def write_partitions(self, changed: PartitionChanges, more: Sequence[Operation] = ()) -> None:
        """Gives partitions of any topics new states. The few operations in `more` come last.

        Each commit is published by itself, as partitions do not depend on each other. NotController or
        Unavailable: what is not in the image was not written.
        """
        places = [(name, index) for name, states in changed.items() for index in states]
        # Many partitions get the same state: encode it once.
        encoded: dict[int, bytes] = {}
        for start in range(0, len(places), MAX_WRITE_OPERATIONS):
            some = places[start : start + MAX_WRITE_OPERATIONS]
            operations: list[Operation] = []
            for name, index in some:
                state = changed[name][index]
                data = encoded.get(id(state))
                if data is None:
                    data = encoded[id(state)] = layout.partition_data(state)
                operations.append(Set(layout.partition_path(name, index), data))
            done = 0
            for batch in batches(operations):
                await self._leadership.write(batch)
                partitions: dict[str, dict[int, PartitionState]] = {}
                for name, index in some[done : done + len(batch)]:
                    partitions.setdefault(name, {})[index] = changed[name][index]
                done += len(batch)
                self._feed.publish(replace(self._delta(), partitions=partitions))
        if more:
            await self._leadership.write(more)

    def publish_brokers(self, changed: Mapping[int, BrokerNode | None]) -> None:
        """Brokers are in the registry already: they write their registrations themselves."""
        self._feed.publish(replace(self._delta(), brokers=changed))

    def _delta(self) -> ImageDelta:
        version = self.image.version
        return ImageDelta(base=version, version=version + 1)


def not_written(error: Unavailable) -> ApiError:
    _log.error("the registry did not take a change: %s", error)
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The registry could not be written: {error}")
