"""The image feed: "what is new since version N?", answered at once or as soon as there is something.

The controller publishes deltas; every broker (the controller's own included) asks for what came after the
version it has, in a long poll, and gets one delta that leads to the newest image, or the whole image when
the deltas in between are no longer kept. A broker that is ahead of this feed (it followed a newer controller)
waits: it must never go back.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ottla.cluster.image import ClusterImage, ImageDelta

KEPT_DELTAS = 1_000


class ImageFeed:
    def __init__(self, image: ClusterImage | None = None, *, kept: int = KEPT_DELTAS) -> None:
        self._current = image or ClusterImage()
        self._deltas: deque[ImageDelta] = deque(maxlen=kept)
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order of asking

    @property
    def current(self) -> ClusterImage:
        return self._current

    def publish(self, delta: ImageDelta) -> ClusterImage:
        """Makes the next image current and wakes the callers that wait for it."""
        self._current = self._current.apply(delta)
        self._deltas.append(delta)
        self._wake()
        return self._current

    def reset(self, image: ClusterImage) -> None:
        """Starts anew from a whole image, as a controller does at the start of its epoch."""
        if image.version <= self._current.version:
            raise ValueError(f"image {image.version} is not newer than {self._current.version}")
        self._current = image
        self._deltas.clear()
        self._wake()

    def since(self, version: int) -> ImageDelta | ClusterImage | None:
        """What leads from `version` to the current image; None if there is nothing newer."""
        if version >= self._current.version:
            return None
        newer = []
        for delta in reversed(self._deltas):
            newer.append(delta)
            if delta.base == version:
                break
        else:
            return self._current
        merged = newer.pop()
        while newer:
            merged = merged.then(newer.pop())
        return merged

    async def after(self, version: int) -> ImageDelta | ClusterImage:
        """`since`, but waits until there is something newer than `version`."""
        while (news := self.since(version)) is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[future] = None
            try:
                await future
            finally:
                self._waiting.pop(future, None)
        return news

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
