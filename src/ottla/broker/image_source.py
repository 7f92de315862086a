"""Where this broker's image comes from: its own controller, or the one of another broker, by FetchImage.

FetchImage is a long poll that also is the sign of life of this broker: it goes on while the image does not
change, and while this broker takes a long time to take over a change. What was received is published in a
feed of this broker's own, from which `after` takes it. Versions only grow over all controllers, so a broker
never goes back, whichever controller it hears. While this broker is the controller nothing goes over a
socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TypeVar

from ottla.broker.controller_location import ControllerLocation
from ottla.broker.first_of import first_of
from ottla.broker.image_follower import ImageFollower
from ottla.broker.peers import IMAGE, Peers
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import ClusterImage, ImageDelta
from ottla.cluster.image_wire import BadImage, News, news_from
from ottla.cluster.registry import RegistryError
from ottla.peer.client import PeerUnreachable, UnsupportedByPeer
from ottla.protocol.errors import ApiError, error_of
from ottla.protocol.messages.fetch_image import FetchImageRequest

logger = logging.getLogger("ottla.broker")

_CALL_SECONDS = 10.0
"""The longest time for an answer beyond the time that was asked for."""
_JOINING_SECONDS = 0.1
"""The time between polls until the first image is taken over: clients wait for this broker."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_SILENT_AFTER = 2
"""Heartbeats without an answer after which a controller is silent."""
_STEPS = 50
"""Topics of a response that are read in one iteration of the event loop."""

T = TypeVar("T")


class ImageSource:
    def __init__(
        self,
        node_id: int,
        own: ImageFeed,
        location: ControllerLocation,
        peers: Peers,
        follower: ImageFollower,
        *,
        broker_epoch: Callable[[], int],
        heartbeat_seconds: Callable[[], float],
    ) -> None:
        """`own` is the feed of this broker's controller. `broker_epoch` is that of the present registration,
        `heartbeat_seconds` the time between signs of life."""
        self._node_id = node_id
        self._own = own
        self._location = location
        self._peers = peers
        self._follower = follower
        self._broker_epoch = broker_epoch
        self._heartbeat_seconds = heartbeat_seconds
        self._received = ImageFeed()
        self._doubtful = False
        self._answered_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._poll_on(), name="image-polls")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def is_silent(self) -> bool:
        """Whether no other broker has answered as the controller for longer than it should take."""
        silence = asyncio.get_running_loop().time() - self._answered_at
        return silence > _SILENT_AFTER * self._heartbeat_seconds()

    async def after(self, version: int) -> ImageDelta | ClusterImage:
        """What is newer than `version`, as soon as there is something."""
        while True:
            moved = self._location.moved
            feed = self._own if self._location.remote is None else self._received
            news = await first_of(feed.after(version), moved)
            if news is not None:
                return news

    async def _poll_on(self) -> None:
        """Poll while another broker is the controller."""
        pause = 0.0
        while True:
            moved, remote = self._location.moved, self._location.remote
            if remote is None:
                await moved.wait()
                pause = 0.0
                continue
            try:
                answered = await first_of(self._poll(remote), moved)
                if answered:
                    self._answered_at = asyncio.get_running_loop().time()
                if answered and pause > _FIRST_PAUSE:
                    logger.info("the controller, broker %d, answers again", remote)
                pause = 0.0
                continue
            except (PeerUnreachable, UnsupportedByPeer, BadImage, ApiError) as error:
                # One failure is how a broker notices that the controller has stopped.
                level = logging.WARNING if pause == _FIRST_PAUSE else logging.DEBUG
                logger.log(level, "no news from the controller, broker %d: %s; trying again", remote, error)
            except Exception:
                logger.exception("the image of broker %d cannot be followed; trying again", remote)
            pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await moved.wait()
            with suppress(RegistryError):
                await self._location.look()

    async def _poll(self, remote: int) -> bool:
        """One FetchImage."""
        image = self._follower.image
        if image.version > self._received.current.version:
            self._received.reset(image)
        received = self._received.current.version
        wait = self._heartbeat_seconds()
        if not image.version:
            wait = min(wait, _JOINING_SECONDS)
        elif image.version < received:
            # The change is being taken over. The controller is told as soon as it is; until then it gets
            # signs of life only.
            try:
                async with asyncio.timeout(wait):
                    await self._follower.caught_up(received)
            except TimeoutError:
                wait = 0.0
        known = 0 if self._doubtful else received
        request = FetchImageRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            version=known,
            applied=self._follower.image.version,
            max_wait_ms=int(wait * 1000),
        )
        response = await self._peers.client(remote, IMAGE).call(request, timeout=wait + _CALL_SECONDS)
        if response.error_code:
            raise ApiError(error_of(response.error_code))
        news = await _finished(news_from(response, known))
        if news is not None:
            self._take(news)
        return True

    def _take(self, news: News) -> None:
        if not isinstance(news, ImageDelta):
            if news.version > self._received.current.version:
                self._received.reset(news)
            self._doubtful = False
            return
        try:
            self._received.publish(news)
        except (LookupError, ValueError) as error:
            self._doubtful = True  # the whole image is asked for next
            raise BadImage(f"the changes to image {news.version} do not fit: {error!r}") from error


async def _finished(steps: Generator[None, None, T]) -> T:
    """The result of a generator; others are served in between."""
    number = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        number += 1
        if not number % _STEPS:
            await asyncio.sleep(0)
