"""The registry in ZooKeeper: brokers on many machines.

`ZooKeeperRegistry` is one session at a time, through kazoo. kazoo has threads of its own; what they report is
handed to the event loop, and nothing blocks in their callbacks.

**The broker's own clock ends the session first.** A client that is cut off learns from ZooKeeper that its
session has expired only when it reaches a server again, long after its ephemeral nodes went to others. So a
heartbeat is sent four times in a session timeout, and when the newest request that was answered was sent
almost a session timeout ago, the session counts as lost here, before a server can end it. A lost session is
never used again: `renew` begins a new one with a new client.

**Reads are current.** A server may lag behind the leader, and after an ambiguous commit that would hide what
happened. Each read follows a `sync` on the same connection, which costs no extra round trip to wait for.

**Creation ids** are ZooKeeper's transaction ids. A multi does not return the id of its transaction for nodes
that it creates, so a commit that creates nodes also sets the data of the root, whose answer tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from ottla.clock import Clock
from ottla.cluster.registry import (
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
    RegistryError,
    SessionLost,
    Set,
    Stat,
    Unavailable,
    check_commit,
    check_path,
    parent_of,
)

_log = logging.getLogger(__name__)

SESSION_TIMEOUT_SECONDS = 6.0
CONNECT_TIMEOUT_SECONDS = 15.0
ROOT = "/"

_BEATS_IN_A_TIMEOUT = 4
_CONNECT_AGAIN_SECONDS = 0.05
_LOST_AFTER = 0.9
"""The share of the session timeout after which a session without an answer counts as lost."""
_READS_IN_FLIGHT = 500

_CONNECTION_PROBLEMS = (
    exceptions.ConnectionLoss,
    exceptions.ConnectionClosedError,
    exceptions.OperationTimeoutError,
)


class ZooKeeperRegistry:
    def __init__(
        self,
        hosts: str,
        *,
        clock: Clock,
        session_timeout: float = SESSION_TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        """`hosts` as ZooKeeper writes them: `host1:2181,host2:2181/chroot`."""
        self._hosts = hosts
        self._clock = clock
        self._session_timeout = session_timeout
        self._connect_timeout = connect_timeout
        self._session: _Session | None = None
        self._renewing = asyncio.Lock()

    @property
    def session_id(self) -> int:
        return self._current().id

    @property
    def lost(self) -> asyncio.Event:
        return self._current().lost

    def may_be_over(self) -> bool:
        return self._session is None or self._session.is_lost()

    async def open(self) -> None:
        self._session = await self._begin()

    async def renew(self) -> int:
        async with self._renewing:
            session = self._current()
            if session.is_lost():
                await session.close()
                self._session = session = await self._begin()
            return session.id

    def leave_soon(self) -> None:
        """Every call ends with the session at the latest: that is soon enough."""

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _begin(self) -> _Session:
        session = _Session(self._hosts, self._session_timeout, self._clock)
        try:
            await session.start(self._connect_timeout)
        except BaseException:
            await session.close()
            raise
        return session

    def _current(self) -> _Session:
        if self._session is None:
            raise Unavailable("the registry is closed")
        return self._session

    # -- writing ----------------------------------------------------------------------------------------

    async def commit(self, operations: Sequence[Operation]) -> list[Stat | None]:
        check_commit(operations)
        session = self._current()
        multi = TransactionRequest(session.client)
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral):
                    multi.create(path, data, ephemeral=ephemeral)
                case Set(path, data, version):
                    multi.set_data(path, data, version)
                case Delete(path, version):
                    multi.delete(path, version)
                case Check(path, version):
                    multi.check(path, version)
        creates = any(isinstance(operation, Create) for operation in operations)
        if creates:
            multi.set_data(ROOT, b"")
        results = await session.call(multi.commit_async, changes=True)
        _raise_refusal(operations, results)
        transaction = results[-1].mzxid if creates else 0
        return [
            _stat_of(operation, result, transaction)
            for operation, result in zip(operations, results, strict=False)
        ]

    # -- reading ----------------------------------------------------------------------------------------

    async def get(self, path: str) -> Node:
        session = self._synced(check_path(path))
        return _node(await session.read(session.client.get_async, path))

    async def find(self, path: str) -> Node | None:
        try:
            return await self.get(path)
        except NoNode:
            return None

    async def exists(self, path: str) -> bool:
        session = self._synced(check_path(path))
        return await session.call(session.client.exists_async, path) is not None

    async def children(self, path: str) -> list[str]:
        session = self._synced(check_path(path))
        return sorted(await session.read(session.client.get_children_async, path))

    async def subtree(self, path: str, without: str = "") -> Mapping[str, Node]:
        session = self._synced(check_path(path))
        found: dict[str, Node] = {}
        limit = asyncio.Semaphore(_READS_IN_FLIGHT)
        left_out = ("/zookeeper", without)

        async def read(name: str) -> list[str]:
            """Take in the node and return its children. What was deleted meanwhile is left out."""
            async with limit:
                try:
                    data, stat = await session.read(session.client.get_async, name)
                    found[name] = _node((data, stat))
                    if not stat.numChildren:
                        return []
                    names = await session.read(session.client.get_children_async, name)
                except NoNode:
                    found.pop(name, None)
                    return []
            return [_child(name, each) for each in names if _child(name, each) not in left_out]

        level = [path]
        while level:
            level = [child for names in await asyncio.gather(*map(read, level)) for child in names]
        found.pop(path, None)
        return {name: found[name] for name in sorted(found)}

    def _synced(self, path: str) -> _Session:
        """The session, with a `sync` on its way. Requests of a connection are answered in their order."""
        session = self._current()
        session.send(session.client.sync_async, path)
        return session

    async def watch(self, path: str) -> asyncio.Future[None]:
        return await self._current().watch(check_path(path))


class _Session:
    """One ZooKeeper session from its first connection to its end, on the event loop that made it."""

    def __init__(self, hosts: str, timeout: float, clock: Clock) -> None:
        self._hosts = hosts
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._connected = False
        self._is_connected = asyncio.Event()  # as far as the event loop knows
        self._proven = clock.monotonic()
        """When the newest request was sent that a server answered."""
        self._calls: dict[asyncio.Future[Any], bool] = {}  # in flight; True for those that change something
        self._watches: set[asyncio.Future[None]] = set()
        self._beats: asyncio.Task[None] | None = None
        self._stopping: asyncio.Future[None] | None = None
        self.id = 0
        self.lost = asyncio.Event()
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, ignore_expire=False)
        self.client = KazooClient(hosts, timeout=timeout, connection_retry=retry, logger=_QUIET)
        self.client.add_listener(self._state_changed)
        self._learn_negotiated_timeout()

    def _learn_negotiated_timeout(self) -> None:
        """The servers may grant another session timeout than was asked for; kazoo keeps it to itself."""
        connection = self.client._connection
        connect = connection._connect

        def connect_and_note(*args: Any) -> Any:
            read_timeout, connect_timeout = connect(*args)
            self._timeout = min(self._timeout, read_timeout * 3 / 2 / 1000)
            return read_timeout, connect_timeout

        connection._connect = connect_and_note

    async def start(self, timeout: float) -> None:
        # Not kazoo's own event, which is set before the listeners are told: requests would be refused.
        self.client.start_async()
        try:
            async with asyncio.timeout(timeout):
                while not self.id:
                    await self._is_connected.wait()
                    await self._begin()
        except TimeoutError:
            raise Unavailable(f"no ZooKeeper server at {self._hosts} answered within {timeout:g} s") from None
        self._proven = self._clock.monotonic()
        self._beats = self._loop.create_task(self._beat(), name="zookeeper session")

    async def _begin(self) -> None:
        """Learn the session's id, unless the connection or the session is lost again meanwhile."""
        try:
            await self._make_root()
        except exceptions.KazooException as error:
            raise Unavailable(f"ZooKeeper at {self._hosts} refused to make its root: {error!r}") from error
        except RegistryError as error:
            _log.info("connecting to ZooKeeper again: %s", error)
            await asyncio.sleep(_CONNECT_AGAIN_SECONDS)
            return
        if self.client.client_id is not None:
            self.id = self.client.client_id[0]

    async def _make_root(self) -> None:
        """The path behind the addresses, with all above it: kazoo makes only what is below it."""
        root, self.client.chroot = self.client.chroot, ""
        try:
            await self.call(self.client.ensure_path_async, root or ROOT)
        finally:
            self.client.chroot = root

    async def close(self) -> None:
        self._end("it was closed")
        if self._beats is not None:
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._stopping is not None:
            await asyncio.shield(self._stopping)  # others may wait for it, too

    # -- the end ----------------------------------------------------------------------------------------

    def is_lost(self) -> bool:
        """By the word of a server, or by this broker's own clock."""
        if not self.lost.is_set() and self.id:
            silent = self._clock.monotonic() - self._proven
            if silent >= self._timeout * _LOST_AFTER:
                self._end(f"no request was answered for {silent:.1f} s")
        return self.lost.is_set()

    def _end(self, why: str) -> None:
        if self.lost.is_set():
            return
        if self.id:
            _log.info("registry session %x ends: %s", self.id, why)
        self.lost.set()
        for future, changes in list(self._calls.items()):
            if not future.done():
                future.set_exception(Ambiguous(why) if changes else SessionLost(why))
        self._fire_watches()
        if self._beats is not None and self._beats is not asyncio.current_task(self._loop):
            self._beats.cancel()
        self._stopping = self._loop.create_future()
        # A daemon: a server that cannot be reached may not keep the process from ending.
        threading.Thread(target=self._stop_client, name="zookeeper stop", daemon=True).start()

    def _stop_client(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:  # noqa: BLE001 - the session is over, whatever kazoo says to it
            _log.debug("stopping a ZooKeeper client: %r", error)
        self._in_loop(self._stopped)

    def _stopped(self) -> None:
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)

    async def _beat(self) -> None:
        """Prove the session alive, and notice when that fails for too long."""
        while not self.is_lost():
            try:
                self.send(self.client.exists_async, ROOT, partial(self._answered, self._clock.monotonic()))
            except RegistryError:
                _log.debug("no heartbeat: not connected to %s", self._hosts)
            # Not later than the session has to be given up.
            left = self._proven + self._timeout * _LOST_AFTER - self._clock.monotonic()
            await asyncio.sleep(max(min(self._timeout / _BEATS_IN_A_TIMEOUT, left), 0.0))

    def _answered(self, sent: float) -> None:
        self._proven = max(self._proven, sent)

    # -- kazoo's threads --------------------------------------------------------------------------------

    def _in_loop(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            _log.debug("a ZooKeeper client outlived its event loop")

    def _state_changed(self, state: str) -> None:
        self._connected = state == KazooState.CONNECTED
        self._in_loop(self._on_state, state)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._is_connected.set()
        else:
            self._is_connected.clear()
        if state == KazooState.LOST and self.id:
            self._end("the ZooKeeper session has expired")
        self._fire_watches()  # the servers forget watches with the connection

    # -- calls ------------------------------------------------------------------------------------------

    def send(
        self, function: Callable[..., Any], path: str, answered: Callable[[], object] | None = None
    ) -> None:
        """Send a request without waiting for its answer."""
        self._check_usable()
        result = function(path)
        if answered is not None:
            result.rawlink(lambda done: self._in_loop(answered) if done.successful() else None)

    async def call(self, function: Callable[..., Any], *args: Any, changes: bool = False) -> Any:
        """The answer to a request of kazoo's. RegistryError when there is none; kazoo's own errors pass."""
        self._check_usable()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[future] = changes
        try:
            sent = self._clock.monotonic()
            function(*args).rawlink(lambda done: self._in_loop(self._finish, future, sent, done))
            return await future
        finally:
            del self._calls[future]

    async def read(self, function: Callable[..., Any], path: str) -> Any:
        try:
            return await self.call(function, path)
        except exceptions.NoNodeError:
            raise NoNode(path) from None

    def _check_usable(self) -> None:
        if self.is_lost():
            raise SessionLost(f"registry session {self.id:x} is over")
        if not self._connected:
            raise Unavailable(f"not connected to ZooKeeper at {self._hosts}")

    def _finish(self, future: asyncio.Future[Any], sent: float, done: Any) -> None:
        error = done.exception
        if error is None:
            self._answered(sent)
        if future.done():
            return
        if error is None:
            future.set_result(done.get_nowait())
        elif isinstance(error, exceptions.SessionExpiredError):
            future.set_exception(SessionLost("the ZooKeeper session has expired"))
        elif isinstance(error, _CONNECTION_PROBLEMS):
            kind = Ambiguous if self._calls.get(future) else Unavailable
            future.set_exception(kind(f"the connection to ZooKeeper at {self._hosts} broke: {error!r}"))
        else:
            future.set_exception(error)

    # -- watches ----------------------------------------------------------------------------------------

    async def watch(self, path: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._watches.add(future)
        future.add_done_callback(self._watches.discard)

        def fired(event: object) -> None:
            self._in_loop(_resolve, future)

        try:
            await self.call(self.client.exists_async, path, fired)
            with contextlib.suppress(exceptions.NoNodeError):  # then the first watch fires at its creation
                await self.call(self.client.get_children_async, path, fired)
        except BaseException:
            future.cancel()
            raise
        return future

    def _fire_watches(self) -> None:
        for future in list(self._watches):
            _resolve(future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _node(answer: tuple[bytes, Any]) -> Node:
    data, stat = answer
    return Node(data, stat.version, stat.czxid, stat.ephemeralOwner)


def _child(path: str, name: str) -> str:
    return f"/{name}" if path == ROOT else f"{path}/{name}"


def _stat_of(operation: Operation, result: Any, transaction: int) -> Stat | None:
    if isinstance(operation, Create):
        return Stat(0, transaction)
    if isinstance(operation, Set):
        return Stat(result.version, result.czxid)
    return None


def _raise_refusal(operations: Sequence[Operation], results: Sequence[Any]) -> None:
    """Raise the error of the operation at fault; kazoo returns it among those that were rolled back."""
    for operation, result in zip(operations, results, strict=False):
        path = operation.path
        match result:
            case exceptions.RolledBackError() | exceptions.RuntimeInconsistency():
                continue
            case exceptions.NoNodeError():
                raise NoNode(parent_of(path) if isinstance(operation, Create) else path)
            case exceptions.NodeExistsError():
                raise NodeExists(path)
            case exceptions.BadVersionError():
                raise BadVersion(path)
            case exceptions.NotEmptyError():
                raise NotEmpty(path)
            case exceptions.NoChildrenForEphemeralsError():
                raise ValueError(f"{parent_of(path)} is ephemeral and cannot have children")
            case Exception():
                raise Unavailable(f"ZooKeeper refused a commit at {path}: {result!r}")


_QUIET = logging.getLogger("ottla.kazoo")
_QUIET.setLevel(logging.ERROR)
"""kazoo logs each attempt to connect; what matters of that is logged here."""
