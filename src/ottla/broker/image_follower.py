"""Following the cluster image: what the controller decides reaches the parts of this broker.

The follower waits for what is new since the image it has, and hands each change to its listeners, one after
the other in a fixed order. When the first ones are done, the new image counts and requests see it. The others
come after that, and then callers that wait for its version go on. A change that fails before it counts is
handed to the listeners once more, from the first one on, so they have to bear that. After it counts, one that
fails does not keep the others from the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.cluster.image import ClusterImage, ImageDelta, difference

logger = logging.getLogger("ottla.broker")

_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ImageChange:
    old: ClusterImage
    image: ClusterImage
    delta: ImageDelta

    @property
    def is_first(self) -> bool:
        """The broker has just started."""
        return not self.old.version

    @property
    def deleted_topics(self) -> list[str]:
        """Also those that were created again under the same name."""
        known = self.old.topics
        return [
            name
            for name, topic in self.delta.topics.items()
            if name in known and (topic is None or topic.id != known[name].id)
        ]


class Source(Protocol):
    """Where images come from."""

    async def after(self, version: int) -> ImageDelta | ClusterImage:
        """What is newer than `version`, as soon as there is something."""
        ...


Listener = Callable[[ImageChange], Awaitable[None]]


class ImageFollower:
    def __init__(self, before: Sequence[Listener], after: Sequence[Listener]) -> None:
        self.image = ClusterImage()
        """What this broker acts on. It never changes, but is replaced."""
        self.changing = asyncio.Lock()
        """Held while listeners handle a change; also for other work that may not overlap with one."""
        self._before = before
        self._after = after
        self._versions: dict[asyncio.Future[None], int] = {}
        self._task: asyncio.Task[None] | None = None

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics_by_id.get(topic_id)
        return topic.name if topic else None

    async def caught_up(self, version: int) -> None:
        """Return when the image of `version` counts here, so that clients see its effect."""
        if self.image.version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._versions[reached] = version
        try:
            await reached
        finally:
            self._versions.pop(reached, None)

    def start(self, source: Source) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow(source), name="image-follower")

    async def stop(self) -> None:
        """A change under way is finished first: threads may be making logs for it."""
        if self._task is not None:
            async with self.changing:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self, source: Source) -> None:
        while True:
            try:
                await self.take_next(source)
            except Exception:
                logger.exception(
                    "cannot follow the cluster from image %d on; trying again", self.image.version
                )
                await asyncio.sleep(_RETRY_SECONDS)

    async def take_next(self, source: Source) -> None:
        """Wait for an image that is newer, and take it over."""
        news = await source.after(self.image.version)
        async with self.changing:
            old = self.image
            if isinstance(news, ImageDelta):
                change = ImageChange(old, old.apply(news), news)
            else:
                change = ImageChange(old, news, difference(old, news))
            for listener in self._before:
                await listener(change)
            self.image = change.image
            for listener in self._after:
                try:
                    await listener(change)
                except Exception:  # the image counts: the others, and those who wait for it, must hear of it
                    logger.exception("a part of the broker could not take over image %d", self.image.version)
        for reached, version in self._versions.items():
            if version <= self.image.version and not reached.done():
                reached.set_result(None)
