"""A broker that stood still may have been replaced: it coordinates nothing until it knows the newest image.

A process that was suspended, or whose machine was, does not notice. It goes on with the image that it had,
and would answer clients with the state that it last coordinated, while another broker leads its partitions.
What it appends is never committed, but a heartbeat or the offsets of a group need no append. So two looks at
the clock that are far apart make it suspect that it was replaced, and the suspicion ends when it has taken
over an image that was the newest one after the gap (`ImageCheck`).

A broker with a registry of its own cannot be replaced, and is never suspected.

A look is taken several times a second, and before each request that must not be answered from old state. A
broker that only cannot reach the others is not found by this: its leaderships are as good as its image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from ottla.broker.controller_location import ControllerLocation
from ottla.broker.image_follower import ImageFollower
from ottla.broker.peers import Peers
from ottla.cluster import layout
from ottla.cluster.registry import Registry, RegistryError
from ottla.peer.client import PeerUnreachable, UnsupportedByPeer
from ottla.protocol.errors import ApiError
from ottla.protocol.messages.fetch_image import FetchImageRequest, FetchImageResponse

logger = logging.getLogger("ottla.broker")

LOOK_SECONDS = 0.25
_MAX_GAP_SECONDS = 2.0
_RETRY_SECONDS = 0.1
_CALL_SECONDS = 2.0

IsNewest = Callable[[], Awaitable[bool]]


def max_gap(session_timeout: float) -> float:
    """Seconds between two looks in which nobody can have taken over.

    It was heard from some time before the gap, and the session in the registry may be shorter.
    """
    return min(_MAX_GAP_SECONDS, session_timeout / 4)


class Suspension:
    def __init__(self, now: Callable[[], float], max_gap: float) -> None:
        self._now = now
        self._max_gap = max_gap
        self._looked = now()
        self._since: float | None = None
        self._begun = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_suspected(self) -> bool:
        """Whether another broker may have taken over since this one last heard from the cluster."""
        now = self._now()
        gap = now - self._looked
        self._looked = now
        if gap > self._max_gap:
            logger.warning(
                "the broker stood still for %.1f s; it coordinates no group until it knows that nobody has "
                "taken over",
                gap,
            )
            self._since = now
            self._begun.set()
        return self._since is not None

    def start(self, is_newest: IsNewest) -> None:
        """`is_newest` finds out whether this broker acts on the newest image, as of the time of the call."""
        self._looked = self._now()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._look_on(), name="suspension"),
            loop.create_task(self._clear(is_newest), name="suspension-end"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _look_on(self) -> None:
        while True:
            _ = self.is_suspected
            await asyncio.sleep(LOOK_SECONDS)

    async def _clear(self, is_newest: IsNewest) -> None:
        while True:
            await self._begun.wait()
            since = self._since
            try:
                is_over = await is_newest()
            except Exception:
                logger.exception("cannot find out whether another broker has taken over; trying again")
                is_over = False
            if is_over and since == self._since:  # it did not stand still again meanwhile
                self._since = None
                self._begun.clear()
            elif not is_over:
                await asyncio.sleep(_RETRY_SECONDS)


class Controlling(Protocol):
    """What is asked of this broker's own controller."""

    @property
    def active(self) -> bool: ...


class ImageCheck:
    """Whether the image that this broker acts on was the newest when it asked."""

    def __init__(
        self,
        node_id: int,
        registry: Registry,
        controller: Controlling,
        location: ControllerLocation,
        peers: Peers,
        follower: ImageFollower,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._registry = registry
        self._controller = controller
        self._location = location
        self._peers = peers
        self._follower = follower
        self._broker_epoch = broker_epoch

    async def __call__(self) -> bool:
        try:
            remote = self._location.remote
            return await (self._is_controller() if remote is None else self._has_image_of(remote))
        except (RegistryError, PeerUnreachable, UnsupportedByPeer, ApiError, TimeoutError) as error:
            logger.debug("it is not known whether another broker has taken over: %s", error)
            return False

    async def _is_controller(self) -> bool:
        """While its session lasts nobody else can be the controller."""
        node = await self._registry.find(layout.broker_path(self._node_id))
        return self._controller.active and node is not None and node.creation_id == self._broker_epoch()

    async def _has_image_of(self, remote: int) -> bool:
        version = self._follower.image.version
        request = FetchImageRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            version=version,
            applied=version,
            max_wait_ms=0,
        )
        # A broker that is not the controller any more refuses; then the registry tells of another one soon.
        response: FetchImageResponse = await self._peers.client(remote).call(request, timeout=_CALL_SECONDS)
        if response.error_code:
            return False
        async with asyncio.timeout(_CALL_SECONDS):
            await self._follower.caught_up(response.version)
        return True
