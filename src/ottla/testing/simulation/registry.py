"""A registry in memory that can be slow, unreachable, expire sessions and leave a commit's outcome unknown.

`SimulatedRegistry` is the server: a tree and its sessions, which outlive every broker of a simulation. A
`SimulatedSession` is what a broker holds (the port of `ottla.cluster.registry`, same contract suite as the
others). Calls take time. A call over a cut link waits for the cut to be mended or for the session timeout;
then a call that never arrived is `Unavailable`, and a commit that arrived but was not answered `Ambiguous`.

A session lives as long as the server gets its heartbeats: four in a session timeout, sent by tasks of its
host, so a crashed, paused or cut-off host loses its session by itself. As with ZooKeeper the host's own clock
ends a session without answers first. Watches do not fire over a cut link; when the host is heard again, all
of its watches fire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from ottla.cluster.registry import (
    ANY_VERSION,
    Ambiguous,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionLost,
    Stat,
    Unavailable,
    check_commit,
    check_path,
    parent_of,
)

T = TypeVar("T")

_RETRY_SECONDS = 0.05
"""How often a call over a cut link is tried again."""
_HEARTBEATS = 4
_LOST_AFTER = 0.9
"""The share of the session timeout after which a session without an answer counts as lost at its host."""


class Tree:
    """The nodes. Pure: a commit is all or nothing, and watches compare signatures."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._children: dict[str, dict[str, int]] = {"/": {}}  # of a path: name -> creation id
        self.transactions = 0
        """How many there were; each one changes something, or begins or ends a session."""

    def next_transaction(self) -> int:
        self.transactions += 1
        return self.transactions

    def commit(self, operations: Sequence[Operation], session: int) -> list[Stat | None]:
        check_commit(operations)
        transaction = self.next_transaction()
        undo: list[tuple[str, Node | None]] = []
        try:
            return [self._apply(operation, transaction, session, undo) for operation in operations]
        except Exception:
            for path, node in reversed(undo):
                self._put(path, node)
            raise

    def _apply(
        self, operation: Operation, transaction: int, session: int, undo: list[tuple[str, Node | None]]
    ) -> Stat | None:
        path = operation.path
        if isinstance(operation, Create):
            parent = parent_of(path)
            if parent != "/":
                above = self.nodes.get(parent)
                if above is None:
                    raise NoNode(parent)
                if above.owner:
                    raise ValueError(f"{parent} is ephemeral and cannot have children")
            if path in self.nodes:
                raise NodeExists(path)
            undo.append((path, None))
            self._put(path, Node(operation.data, 0, transaction, session if operation.ephemeral else 0))
            return Stat(0, transaction)
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        if isinstance(operation, Check):
            return None
        undo.append((path, node))
        if isinstance(operation, Delete):
            if self._children.get(path):
                undo.pop()
                raise NotEmpty(path)
            self._put(path, None)
            return None
        self._put(path, Node(operation.data, node.version + 1, node.creation_id, node.owner))
        return Stat(node.version + 1, node.creation_id)

    def _put(self, path: str, node: Node | None) -> None:
        parent = parent_of(path)
        if node is None:
            self.nodes.pop(path, None)
            self._children.get(parent, {}).pop(path, None)
        else:
            self.nodes[path] = node
            self._children.setdefault(parent, {})[path] = node.creation_id

    def remove_owned_by(self, session: int) -> None:
        self.next_transaction()
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self._put(path, None)

    def children(self, path: str) -> list[str]:
        if check_path(path) != "/" and path not in self.nodes:
            raise NoNode(path)
        start = len(path) + (path != "/")
        return sorted(child[start:] for child in self._children.get(path, {}))

    def subtree(self, path: str, without: str = "") -> dict[str, Node]:
        start = check_path(path).rstrip("/") + "/"
        return {
            each: self.nodes[each]
            for each in sorted(self.nodes)
            if each.startswith(start) and not (without and f"{each}/".startswith(f"{without}/"))
        }

    def signature(self, path: str) -> tuple[int, int, int, int]:
        """Differs whenever the node or the set of its children changed."""
        node = self.nodes.get(path)
        children = self._children.get(path, {})
        made, version = (node.creation_id, node.version) if node else (0, 0)
        return made, version, len(children), max(children.values(), default=0)


@dataclass
class _Watch:
    session: int
    path: str
    signature: tuple[int, int, int, int]
    future: asyncio.Future[None] = field(repr=False)

    def fire(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class SimulatedRegistry:
    """The server. `delay` is what one call takes, at least and at most; `ambiguous` is the share of commits
    whose answer is lost although they happened, or which are lost although they were sent."""

    def __init__(
        self,
        rng: Random,
        *,
        session_timeout: float = 6.0,
        delay: tuple[float, float] = (0.0, 0.0),
        ambiguous: float = 0.0,
        is_cut: Callable[[str], bool] = lambda host: False,
        is_cut_back: Callable[[str], bool] = lambda host: False,
    ) -> None:
        """`is_cut` says whether the named host cannot reach the registry now, `is_cut_back` whether the
        registry cannot reach the host."""
        self.tree = Tree()
        self.session_timeout = session_timeout
        self.ambiguous = ambiguous
        self.is_cut = is_cut
        self.is_cut_back = is_cut_back
        self._delay = delay
        self.rng = rng
        self._last_seen: dict[int, float] = {}
        self._hosts: dict[int, str] = {}
        self._watches: list[_Watch] = []

    def connect(self, host: str = "") -> SimulatedSession:
        """A session for a host, to be opened."""
        return SimulatedSession(self, host)

    def expire(self, session: int) -> bool:
        """End a session as if its heartbeats had stopped; its ephemeral nodes go."""
        self._hosts.pop(session, None)
        if self._last_seen.pop(session, None) is None:
            return False
        self.tree.remove_owned_by(session)
        self.changed()
        return True

    def notice_death(self, host: str) -> None:
        """End the sessions of a crashed host at once, as the registry of one machine does, which the kernel
        reports a dead process. Without this they end by their timeout."""
        for session in [session for session, name in self._hosts.items() if name == host]:
            self.expire(session)

    # -- for sessions ---------------------------------------------------------------------------------

    def delay(self) -> float:
        shortest, longest = self._delay
        return shortest + (longest - shortest) * self.rng.random()

    def begin(self, host: str, now: float) -> int:
        session = self.tree.next_transaction()
        self._last_seen[session] = now
        self._hosts[session] = host
        return session

    def keep_alive(self, session: int, now: float) -> None:
        """A heartbeat of the session; SessionLost if the server has given it up."""
        self.expire_silent(now)
        if session not in self._last_seen:
            raise SessionLost(f"session {session} has expired")
        self._last_seen[session] = now

    def expire_silent(self, now: float) -> None:
        for session, last_seen in list(self._last_seen.items()):
            if now - last_seen > self.session_timeout:
                self.expire(session)

    def changed(self) -> None:
        """Fire the watches of everything that changed, as far as their hosts can be reached."""
        for watch in self._watches:
            if self.tree.signature(watch.path) != watch.signature:
                host = self._hosts.get(watch.session)
                if host is None or not self.is_cut_back(host):
                    watch.fire()
        self._watches = [watch for watch in self._watches if not watch.future.done()]

    def add_watch(self, session: int, path: str, future: asyncio.Future[None]) -> None:
        self._watches.append(_Watch(session, path, self.tree.signature(check_path(path)), future))

    def dirty(self, session: int) -> None:
        """Fire all watches of a session: it may have missed something."""
        for watch in self._watches:
            if watch.session == session:
                watch.fire()


class SimulatedSession:
    """One session: the port that brokers use."""

    def __init__(self, server: SimulatedRegistry, host: str) -> None:
        self._server = server
        self._host = host
        self._session = 0
        self._lost = asyncio.Event()
        self._answered = 0.0
        """When the newest request that was answered was sent."""
        self._renewing = asyncio.Lock()
        self._ticker: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    def may_be_over(self) -> bool:
        if self._now() - self._answered >= self._server.session_timeout * _LOST_AFTER:
            self._lose(self._session)
        return self._lost.is_set()

    def leave_soon(self) -> None:
        """Every call ends with the session at the latest."""

    async def open(self) -> None:
        await self._begin()
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="registry session")

    async def renew(self) -> int:
        async with self._renewing:
            if self._lost.is_set():
                await self._begin()
                self._lost = asyncio.Event()
        return self._session

    async def _begin(self) -> None:
        sent = self._now()
        self._session = await self._call(lambda: self._server.begin(self._host, self._now()), checked=False)
        self._answered = sent

    async def close(self) -> None:
        if self._ticker is None:
            return
        await self.abandon()
        if not self._server.is_cut(self._host):
            self._server.expire(self._session)

    async def abandon(self) -> None:
        """Leave as a killed process does: the session ends when its timeout is over."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None

    async def commit(self, operations: Sequence[Operation]) -> list[Stat | None]:
        server = self._server

        def work() -> list[Stat | None]:
            try:
                return server.tree.commit(operations, self._session)
            finally:
                server.changed()

        chance = server.rng.random() if server.ambiguous else 1.0
        if chance < server.ambiguous:
            if chance < server.ambiguous / 2:
                await self._call(work)
            raise Ambiguous("the connection broke before the answer came")
        return await self._call(work, is_commit=True)

    async def get(self, path: str) -> Node:
        node = await self.find(path)
        if node is None:
            raise NoNode(path)
        return node

    async def find(self, path: str) -> Node | None:
        return await self._call(lambda: self._server.tree.nodes.get(check_path(path)))

    async def exists(self, path: str) -> bool:
        return await self.find(path) is not None

    async def children(self, path: str) -> list[str]:
        return await self._call(lambda: self._server.tree.children(path))

    async def subtree(self, path: str, without: str = "") -> Mapping[str, Node]:
        return await self._call(lambda: self._server.tree.subtree(path, without))

    async def watch(self, path: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._call(lambda: self._server.add_watch(self._session, path, future))
        return future

    # -- one call -------------------------------------------------------------------------------------

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _call(self, work: Callable[[], T], *, checked: bool = True, is_commit: bool = False) -> T:
        """The way there, the work, and the way back; a session that has ended does not work."""
        server = self._server
        session, sent = self._session, self._now()
        if checked:
            self._check_clock()
        await self._travel(server.is_cut, Unavailable("the registry cannot be reached"))
        if checked:
            try:
                server.keep_alive(session, self._now())
            except SessionLost:
                self._lose(session)
                raise
        else:
            server.expire_silent(self._now())
        result = work()
        late = Ambiguous if is_commit else Unavailable
        await self._travel(server.is_cut_back, late("the registry's answer did not arrive"))
        if checked and session == self._session:
            self._answered = max(self._answered, sent)
        return result

    async def _travel(self, is_cut: Callable[[str], bool], unreachable: Exception) -> None:
        await asyncio.sleep(self._server.delay())
        patience = self._now() + self._server.session_timeout
        while is_cut(self._host):
            if self._now() >= patience:
                raise unreachable
            await asyncio.sleep(_RETRY_SECONDS)

    def _check_clock(self) -> None:
        """SessionLost when there was no answer for too long: the server may have given the session up."""
        if self.may_be_over():
            raise SessionLost(f"session {self._session} has expired")

    async def _tick(self) -> None:
        """Keep the session alive, and notice when it is not."""
        server = self._server
        unheard = False
        while True:
            await asyncio.sleep(server.session_timeout / _HEARTBEATS)
            server.expire_silent(self._now())  # the server's own clock, which no host can stop
            session = self._session
            try:
                self._check_clock()
                if server.is_cut(self._host) or server.is_cut_back(self._host):
                    unheard = True
                    continue
                server.keep_alive(session, self._now())
            except SessionLost:
                self._lose(session)
                continue
            self._answered = self._now()
            if unheard:
                unheard = False
                server.dirty(session)
            else:
                server.changed()  # what a cut between two heartbeats held back

    def _lose(self, session: int) -> None:
        if session == self._session and not self._lost.is_set():
            self._lost.set()
            self._server.dirty(session)
