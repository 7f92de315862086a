"""Making the partitions of this broker what the cluster image says: a listener of `image_follower`.

New partitions get logs, deleted topics and moved replicas lose theirs, changed settings and assignments take
effect. What blocks on the disk runs in a thread; many topics are adopted in portions, so that clients are
served in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Protocol

from ottla.broker.image_follower import ImageChange
from ottla.broker.portions import in_portions
from ottla.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ClusterImage, TopicImage
from ottla.config.values import TopicConfig
from ottla.replication.replicas import Replicas

logger = logging.getLogger("ottla.broker")

_ADOPTED_AT_A_TIME = 50
"""Topics that are adopted in one iteration of the event loop; a change of broker settings concerns all."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
ConfigOf = Callable[[ClusterImage, str], TopicConfig]


class Cleaning(Protocol):
    """What compaction has to know of deleted topics."""

    async def release(self, topics: Collection[str]) -> None: ...

    def forget(self, topic: str) -> None: ...


class LocalPartitions:
    """`config_of` gives the settings of a topic in an image."""

    def __init__(
        self, replicas: Replicas, cleaning: Cleaning, config_of: ConfigOf, in_thread: InThread
    ) -> None:
        self._replicas = replicas
        self._cleaning = cleaning
        self._config_of = config_of
        self._in_thread = in_thread

    async def drop_deleted(self, change: ImageChange) -> None:
        if change.is_first:
            strays = partial(self._replicas.set_strays_aside, change.image.topics)
            for stray in await self._in_thread(strays):
                logger.warning(
                    "the cluster does not know %s: its log is kept as %s.*-stray for 7 days, then deleted",
                    stray,
                    stray,
                )
        deleted = change.deleted_topics
        await self._cleaning.release(deleted)
        await self._replicas.drop(deleted)
        for name in deleted:
            self._cleaning.forget(name)

    async def adopt_changed(self, change: ImageChange) -> None:
        """After the settings of the broker, by which those of topics are found, have taken effect."""
        image, delta = change.image, change.delta
        changed = [
            image.topics[name] for name in {**delta.topics, **delta.partitions} if name in image.topics
        ]
        if any(kind == BROKER_CONFIG for kind, _ in delta.configs):
            changed = list(image.topics.values())
        config_of = partial(self._config_of, image)
        await self._drop_moved(changed)
        if changed:
            await self._in_thread(partial(self._replicas.prepare, changed, config_of))
            for some in in_portions(changed, _ADOPTED_AT_A_TIME):
                self._replicas.adopt(some, config_of)
                await asyncio.sleep(0)
        for kind, name in delta.configs:
            if kind == TOPIC_CONFIG and name in image.topics:
                self._replicas.configure(name, config_of(name))

    async def _drop_moved(self, topics: list[TopicImage]) -> None:
        moved = self._replicas.moved_away(topics)
        if moved:
            names = {name for name, _ in moved}
            await self._cleaning.release(names)
            await self._replicas.drop_moved(moved)
            for name in names:
                self._cleaning.forget(name)

    async def make_missing(self, image: ClusterImage) -> None:
        """Try again to make logs that could not be made, for example because the disk was full."""
        missing = [topic for name in self._replicas.missing() if (topic := image.topics.get(name))]
        if missing:
            config_of = partial(self._config_of, image)
            await self._in_thread(partial(self._replicas.prepare, missing, config_of))
            self._replicas.adopt(missing, config_of)
