"""Controller election and the controller's fenced writes.

One broker of a cluster is the controller, and only it writes cluster state. It owns the ephemeral node
`/controller`. Its writes are fenced by `/controller_epoch`, which every commit of the controller rewrites
under a version check. One commit wins the election (it creates the node and raises the epoch), so exactly one
of two candidates wins. A controller that was replaced while it was suspended fails the version check on its
first write, and resigns with nothing written.

The epoch node also counts the controller's writes. That makes an ambiguous commit easy to resolve: the node
says whether the write with this number was committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.cluster.layout import CONTROLLER, CONTROLLER_EPOCH, epoch_data, from_bytes, to_bytes
from ottla.cluster.registry import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_OPERATIONS,
    Ambiguous,
    BadVersion,
    Create,
    Delete,
    NodeError,
    NodeExists,
    NoNode,
    Operation,
    Registry,
    RegistryError,
    SessionLost,
    Set,
    Unavailable,
)

_log = logging.getLogger(__name__)

MAX_WRITE_OPERATIONS = MAX_COMMIT_OPERATIONS - 1
MAX_WRITE_BYTES = MAX_COMMIT_BYTES - 1_000
"""The rewrite of the epoch is one more operation."""

_RESOLVE_ATTEMPTS = 5
_RESOLVE_PAUSE_SECONDS = 0.2


class NotController(Exception):
    """This broker is not the controller (any more); nothing was written."""


@dataclass(slots=True)
class Term:
    """The time for which this broker is the controller, from one election on."""

    epoch: int
    version: int
    """Of the epoch node, as of our last write."""
    writes: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Leadership:
    def __init__(self, registry: Registry, broker_id: int) -> None:
        self._registry = registry
        self._broker_id = broker_id
        self._term: Term | None = None
        self._own_sessions: set[int] = set()
        """Those in which this broker was the controller."""

    @property
    def term(self) -> Term | None:
        return self._term

    async def campaign(self) -> Term | None:
        """Stands for election once. None: another broker is the controller."""
        controller = await self._registry.find(CONTROLLER)
        session = self._registry.session_id
        if controller is not None and controller.owner not in (session, *self._own_sessions):
            return None
        epoch_node = await self._registry.get(CONTROLLER_EPOCH)
        epoch = from_bytes(epoch_node.data)["epoch"] + 1
        operations: list[Operation] = [Set(CONTROLLER_EPOCH, epoch_data(epoch, 0), epoch_node.version)]
        if controller is not None and controller.owner != session:
            # Of a session that is over for this broker, and not yet for the registry.
            operations.append(Delete(CONTROLLER))
            controller = None
        if controller is None:
            operations.append(Create(CONTROLLER, to_bytes({"broker": self._broker_id}), ephemeral=True))
        try:
            await self._registry.commit(operations)
        except (NodeExists, BadVersion, NoNode):
            return None
        except Ambiguous:
            if not await self._holds(epoch):
                return None
        self._term = Term(epoch, epoch_node.version + 1)
        self._own_sessions.add(session)
        _log.info("broker %d is the controller, epoch %d", self._broker_id, epoch)
        return self._term

    async def _holds(self, epoch: int) -> bool:
        """After an ambiguous election: is `/controller` ours, with the epoch we asked for?"""
        controller = await self._registry.find(CONTROLLER)
        epoch_node = await self._registry.get(CONTROLLER_EPOCH)
        return (
            controller is not None
            and controller.owner == self._registry.session_id
            and from_bytes(epoch_node.data)["epoch"] == epoch
        )

    def resign(self, why: str) -> None:
        if self._term is not None:
            _log.warning("broker %d is no longer the controller: %s", self._broker_id, why)
            self._end_term(self._term)

    async def hand_over(self) -> None:
        """Resigns in the registry, so that another broker need not wait for this session to end."""
        term = self._term
        if term is not None:
            try:
                await self.write([Delete(CONTROLLER)])
            except (NotController, RegistryError) as error:
                _log.warning("broker %d could not hand over as controller: %s", self._broker_id, error)
            self._end_term(term)

    def _end_term(self, term: Term) -> None:
        term.over.set()
        self._term = None

    async def write(self, operations: Sequence[Operation]) -> None:
        """Commits as the controller. `NotController`: resigned; `Unavailable`: nothing written, try again."""
        term = self._term
        if term is None:
            raise NotController
        data = epoch_data(term.epoch, term.writes + 1)
        try:
            await self._registry.commit([Set(CONTROLLER_EPOCH, data, term.version), *operations])
        except Ambiguous as error:
            _log.warning("a commit of the controller has an unknown outcome: %s", error)
            await self._resolve(term, data)
        except SessionLost as error:
            self.resign(str(error))
            raise NotController from error
        except NodeError as error:
            # Either the epoch moved on, or the registry is not what this controller believes it to be. In
            # both cases the next controller, maybe this broker again, starts by reading everything.
            self.resign(f"{type(error).__name__} at {error.path}")
            raise NotController from error
        term.writes += 1
        term.version += 1

    async def _resolve(self, term: Term, data: bytes) -> None:
        """Returns if the write is in, raises `Unavailable` if it is not, resigns if that cannot be known."""
        for _ in range(_RESOLVE_ATTEMPTS):
            try:
                epoch_node = await self._registry.get(CONTROLLER_EPOCH)
            except Unavailable:
                await asyncio.sleep(_RESOLVE_PAUSE_SECONDS)
                continue
            except SessionLost as error:
                self.resign(str(error))
                raise NotController from error
            if epoch_node.data == data and epoch_node.version == term.version + 1:
                return
            if epoch_node.version == term.version:
                raise Unavailable("the registry lost the commit")
            break
        self.resign("the outcome of a commit cannot be known")
        raise NotController
