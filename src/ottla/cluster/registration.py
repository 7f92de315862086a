"""A broker's place in the cluster: the ephemeral node `/brokers/ids/N`.

While it exists the broker is a member and the controller may give it partitions. Its creation id is the
broker's epoch: it grows with every registration, so that messages of an earlier run of the broker can be told
from those of the present one. If the session is lost (the process hung for longer than the session timeout),
the registration begins a new session and registers again, under a new epoch. From the moment when the
session may be over, by this broker's own clock, `is_held` is False: others may have its place.

A registration says what the broker may have lost of its logs since the last one. The controller acts on it
before the broker is in the image without being fenced; from then on `accepted` keeps it from being said
again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from ottla.cluster.image import BrokerNode
from ottla.cluster.layout import Lost, broker_data, broker_path
from ottla.cluster.registry import (
    Ambiguous,
    Create,
    Delete,
    NodeExists,
    Registry,
    RegistryError,
)

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_REMIND_SECONDS = 30.0
"""How often a broker says that it cannot register."""


class BrokerIdInUse(Exception):
    """Another living broker is registered under this id."""


class Registration:
    def __init__(self, registry: Registry, broker: BrokerNode) -> None:
        """The broker's epoch is not known yet; what is given is ignored."""
        self._registry = registry
        self._broker = broker
        self._lost = Lost.NOTHING
        self._session = 0
        """That holds the node."""
        self._own_sessions: set[int] = set()
        """All that have held it. The nodes of those that are over may be replaced at once."""
        self._said: tuple[str, float] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def broker(self) -> BrokerNode:
        return self._broker

    @property
    def is_held(self) -> bool:
        """Whether the node is surely there, with the epoch that is known here."""
        return not self._registry.may_be_over() and self._registry.session_id == self._session

    async def start(self, *, lost: Lost = Lost.NOTHING, patience: float = 0.0) -> int:
        """Registers, with what the broker may have lost; returns the broker epoch.

        For `patience` seconds it waits for a registration under this id to end: after a crash the session of
        the earlier run lasts until the registry has noticed.
        """
        self._lost = lost
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            gone = await self._registry.watch(broker_path(self._broker.id))
            try:
                await self._register()
                break
            except BrokerIdInUse as in_use:
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    raise
                _log.info("%s; waiting until the registry has ended an earlier session", in_use)
                await asyncio.wait([gone], timeout=left)
            finally:
                gone.cancel()
        self._keeper = asyncio.create_task(self._keep(), name="broker registration")
        return self._broker.epoch

    def accepted(self) -> None:
        """The controller has acted on what was lost: the logs are what the cluster takes them for."""
        self._lost = Lost.NOTHING

    async def stop(self) -> None:
        """Stops keeping the node; it goes with the session."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def _register(self) -> None:
        path, data = broker_path(self._broker.id), broker_data(self._broker, self._lost)
        while True:
            try:
                await self._registry.commit([Create(path, data, ephemeral=True)])
            except (NodeExists, Ambiguous):
                node = await self._registry.find(path)
                if node is None:
                    continue  # the other one just left, or the ambiguous commit did not happen
                if node.owner not in (self._registry.session_id, *self._own_sessions):
                    raise BrokerIdInUse(
                        f"broker {self._broker.id} is already registered: {node.data.decode()}"
                    ) from None
                # Ours already, from an earlier start in this session, a session that is over here but not yet
                # there, or an ambiguous commit: a new node, so that the epoch grows and watchers see it.
                await self._registry.commit([Delete(path), Create(path, data, ephemeral=True)])
            node = await self._registry.get(path)
            self._broker = replace(self._broker, epoch=node.creation_id)
            self._session = node.owner
            self._own_sessions.add(node.owner)
            return

    async def _keep(self) -> None:
        registered = True
        while True:
            if registered:
                await self._registry.lost.wait()
            registered = await self._registered_again()
            if not registered:
                await asyncio.sleep(_RETRY_SECONDS)

    def _say(self, why: str) -> None:
        """One line for a reason, and now and then a reminder."""
        now = asyncio.get_running_loop().time()
        if self._said is None or self._said[0] != why or now - self._said[1] >= _REMIND_SECONDS:
            self._said = why, now
            _log.error("broker %d cannot register again yet: %s", self._broker.id, why)

    async def _registered_again(self) -> bool:
        try:
            await self._registry.renew()
            await self._register()
        except (RegistryError, BrokerIdInUse) as error:
            self._say(str(error))
            return False
        self._said = None
        _log.warning("broker %d registered again, epoch %d", self._broker.id, self._broker.epoch)
        return True
