"""Where the active controller is: the registry's node `/controller`, watched.

What the registry says counts, even while this broker still takes itself for the controller: it may have been
deposed without knowing yet.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.broker.first_of import first_of
from ottla.broker.peers import Peers
from ottla.cluster import layout
from ottla.cluster.registry import Registry, RegistryError

logger = logging.getLogger("ottla.broker")

_RETRY_SECONDS = 0.5


class ControllerLocation:
    def __init__(self, node_id: int, registry: Registry, peers: Peers) -> None:
        self._node_id = node_id
        self._registry = registry
        self._peers = peers
        self._found: tuple[int, int] | None = None  # the controller's id, and its node's creation id
        self._task: asyncio.Task[None] | None = None
        self.moved = asyncio.Event()
        """Set when the controller is another one, or elected again; then there is a new event here."""

    @property
    def remote(self) -> int | None:
        """The broker that is the controller; None if it is this one, or if there is none."""
        return self._found[0] if self._found is not None and self._found[0] != self._node_id else None

    async def start(self) -> None:
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="controller-location")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def look(self) -> None:
        """Read from the registry which broker is the controller, and where it is."""
        node = await self._registry.find(layout.CONTROLLER)
        found = None
        if node is not None:
            found = int(layout.from_bytes(node.data)["broker"]), node.creation_id
            if found[0] != self._node_id:
                broker = await self._registry.find(layout.broker_path(found[0]))
                if broker is not None:
                    await self._peers.learn(layout.broker_from(found[0], broker))
        if found != self._found:
            self._found = found
            if self.remote is not None:
                logger.info("broker %d follows broker %d as the controller", self._node_id, self.remote)
            self.wake()

    def wake(self) -> None:
        """Let everything that waits for the controller look again."""
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    async def _watch(self) -> None:
        while True:
            try:
                lost = self._registry.lost
                watch = await self._registry.watch(layout.CONTROLLER)
                try:
                    await self.look()
                    await first_of(watch, lost)
                finally:
                    watch.cancel()
                if not lost.is_set():
                    continue
            except RegistryError as error:
                logger.debug("cannot find the controller: %s", error)
            except Exception:
                logger.exception("cannot find the controller; trying again")
            await asyncio.sleep(_RETRY_SECONDS)
