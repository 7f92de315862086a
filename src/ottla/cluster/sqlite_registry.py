"""The registry in a SQLite file: all brokers of one machine, nothing to install.

`SqliteStore` is the file (or, with no path, a tree in memory) with the one thread that touches it: SQLite
blocks, and the event loop must not. `SqliteRegistry` is one session on a store. A process has one store per
file and usually one session on it; several processes may open the same file.

How a change is noticed. Changes made through this store wake its watches directly. Changes by another
process are found by looking at the WAL file's size and time (one `stat`, no SQLite) a few times a second,
and only if that moved by asking SQLite. With no other process around there is nothing to look for but its
arrival, so an idle broker alone looks twice a second and writes nothing at all.

How a session ends. By `close`; by the death of its process, which the kernel reports (`session_locks`); or by
its lease: a session beats by raising a counter in its row, and a session that sees the counter unchanged for
the session timeout by its own clock removes the row and the session's nodes in one transaction. No clock is
compared with another's, so a jump of the wall clock, a suspended laptop or a reboot ends no session. A
session that hung and comes back finds its row gone, and every commit checks the row: it can write nothing.

When a session may be over (`may_be_over`). One that shares the file, and could not beat for almost the
session timeout, counts as over by its own clock until a beat finds its row. Two things do not count as
silence. A session that is alone does not beat: nobody is there to end it. And when a beat finds the row but
the disk is full, the others cannot write to the same file either.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from ottla.clock import Clock
from ottla.cluster.registry import (
    Node,
    NoNode,
    Operation,
    RegistryError,
    SessionLost,
    Stat,
    Unavailable,
    check_path,
)
from ottla.cluster.sqlite_tree import ABSENT, LAST_BUSY_SECONDS, Signature, SqliteTree, is_full, unavailable

_log = logging.getLogger(__name__)

SESSION_TIMEOUT_SECONDS = 6.0

_LOOK_ALONE_SECONDS = 0.5
_LOOK_SHARED_SECONDS = 0.1
_DOUBTFUL_AFTER = 0.9
"""The share of the session timeout after which a session that could not beat may be over."""
_BEAT_SECONDS = 0.5
"""How often a session that is not alone beats and looks for the dead."""

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """The file and its thread. Opened by its first session, closed by its last."""

    def __init__(
        self,
        path: Path | None,
        *,
        durable: bool = True,
        frees_space: Callable[[Sequence[Operation]], bool] = lambda operations: True,
    ) -> None:
        """`path` None: in memory, gone with the last session. `durable` False: commits are not synced.

        `frees_space` says which commits may use the space that is kept back for a full disk.
        """
        self._path = path
        self._frees_space = frees_space
        self._durable = durable
        self._wal = path.with_name(path.name + "-wal") if path else None
        self._wal_seen: tuple[int, int] | None = None
        self._tree: SqliteTree | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._users = 0
        self._watches: list[tuple[str, Signature, asyncio.Future[None]]] = []
        self.changes = 0
        """Grows with every change seen, so that a session knows when to look around."""

    async def open(self) -> None:
        self._users += 1
        if self._users > 1:
            return
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-registry")
        try:
            self._tree = await self.run(
                SqliteTree, self._path, durable=self._durable, frees_space=self._frees_space
            )
        except BaseException:
            self._users = 0
            self._thread.shutdown(wait=False)
            raise

    async def close(self) -> None:
        self._users -= 1
        if self._users or self._thread is None:
            return
        for _, _, future in self._watches:
            future.cancel()
        self._watches.clear()
        await self.run(self.tree.close)
        self._thread.shutdown(wait=False)  # its only thread has nothing left to do
        self._thread = self._tree = None

    def leave_soon(self) -> None:
        """Wait only a moment for the lock from now on, also where a call waits for it already."""
        if self._tree is not None:
            self._tree.patience = LAST_BUSY_SECONDS

    @property
    def tree(self) -> SqliteTree:
        if self._tree is None:
            raise Unavailable("the registry is closed")
        return self._tree

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `function` on the store's thread, in the order of asking."""
        if self._thread is None:
            raise Unavailable("the registry is closed")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))
        except (sqlite3.Error, OSError) as error:
            raise unavailable(error, f"the registry at {self._path or 'memory'}") from error

    async def change(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`run`, for what changes the tree; wakes the watches even when the outcome is unknown."""
        try:
            return await self.run(function, *args, **kwargs)
        finally:
            await self._wake_watches()

    async def look_for_others_changes(self) -> None:
        if self._wal is None:
            return
        try:
            stat = self._wal.stat()  # metadata of an open local file: does not touch the disk
            seen = (stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            seen = (0, 0)
        if seen != self._wal_seen:
            self._wal_seen = seen
            if await self.run(self.tree.changed_by_others):
                await self._wake_watches()

    async def watch(self, path: str) -> asyncio.Future[None]:
        signature = await self.run(self.tree.signature, check_path(path))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watches.append((path, signature, future))
        return future

    def dirty_watches(self) -> None:
        """Fires every watch: what they stand on is no longer known."""
        for _, _, future in self._watches:
            if not future.done():
                future.set_result(None)
        self._watches.clear()

    async def _wake_watches(self) -> None:
        self.changes += 1
        watches = [watch for watch in self._watches if not watch[2].done()]
        self._watches = list(watches)  # more may come while the signatures are read
        if not watches:
            return
        tree = self.tree
        try:
            signatures = await self.run(lambda: {path: tree.signature(path) for path, _, _ in watches})
        except Unavailable as error:
            # The change itself is committed; its caller must not get an error.
            _log.warning("cannot find out what changed, so all watches fire: %s", error)
            self.dirty_watches()
            return
        for path, signature, future in watches:
            # A node that is still not there may have come and gone since the last look.
            if (signature == ABSENT or signatures[path] != signature) and not future.done():
                future.set_result(None)


class SqliteRegistry:
    """One session on a store."""

    def __init__(
        self, store: SqliteStore | Path, clock: Clock, *, session_timeout: float = SESSION_TIMEOUT_SECONDS
    ) -> None:
        """`store` may be a path: a store of its own there."""
        self._store = store if isinstance(store, SqliteStore) else SqliteStore(store)
        self._clock = clock
        self._timeout = session_timeout
        self._session = 0
        self._lost = asyncio.Event()
        self._renewing = asyncio.Lock()
        self._ticker: asyncio.Task[None] | None = None
        self._changes_seen = -1
        self._alone = False
        self._last_beat = 0.0
        self._proven = 0.0
        """When the newest beat began that found the session alive."""
        self._others: dict[int, tuple[int, float]] = {}
        """Other sessions: the beats last seen, and when this session first saw that number."""

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    def may_be_over(self) -> bool:
        return self._lost.is_set() or (
            not self._alone and self._clock.monotonic() - self._proven >= self._timeout * _DOUBTFUL_AFTER
        )

    async def open(self) -> None:
        await self._store.open()
        try:
            await self._begin()
        except BaseException:
            await self._store.close()
            raise
        self._ticker = asyncio.create_task(self._tick(), name="registry session")

    async def renew(self) -> int:
        async with self._renewing:  # the broker's registration and its controller may both ask
            if self._lost.is_set():
                await self._begin()
                self._lost = asyncio.Event()
                _log.warning("began a new registry session %d", self._session)
        return self._session

    def leave_soon(self) -> None:
        self._store.leave_soon()

    async def close(self) -> None:
        if self._ticker is None:
            return
        await self._stop_ticking()
        try:
            await self._store.change(self._store.tree.end_session, self._session)
        finally:
            await self._store.close()

    async def abandon(self) -> None:
        """Leaves as a killed process does: the session ends when other sessions notice."""
        await self._stop_ticking()
        await self._store.run(self._store.tree.release_lock, self._session)
        await self._store.close()

    async def commit(self, operations: Sequence[Operation]) -> list[Stat | None]:
        session = self._living_session()
        try:
            return await self._store.change(self._store.tree.commit, operations, session)
        except SessionLost:
            self._lose(session)
            raise

    async def get(self, path: str) -> Node:
        node = await self.find(path)
        if node is None:
            raise NoNode(path)
        return node

    async def find(self, path: str) -> Node | None:
        self._living_session()
        return await self._store.run(self._store.tree.get, path)

    async def exists(self, path: str) -> bool:
        return await self.find(path) is not None

    async def children(self, path: str) -> list[str]:
        self._living_session()
        return await self._store.run(self._store.tree.children, path)

    async def subtree(self, path: str, without: str = "") -> Mapping[str, Node]:
        self._living_session()
        return await self._store.run(self._store.tree.subtree, path, without)

    async def watch(self, path: str) -> asyncio.Future[None]:
        self._living_session()
        return await self._store.watch(path)

    async def beat(self) -> None:
        """Renews this session's lease and ends the sessions that are dead or have stood still too long.

        Called by the ticker; a test that stops time calls it itself.
        """
        tree, session = self._store.tree, self._living_session()
        now = self._clock.monotonic()
        self._changes_seen = self._store.changes
        self._last_beat = now
        try:
            others, dead = await self._store.run(_beat_and_look, tree, session)
        except SessionLost:
            self._lose(session)
            raise
        self._proven = max(self._proven, now)
        self._alone = not others
        seen = self._others
        self._others = {
            other: seen[other] if other in seen and seen[other][0] == beats else (beats, now)
            for other, beats in others.items()
        }
        for other, (beats, since) in list(self._others.items()):
            if other in dead or now - since > self._timeout:
                why = "its process died" if other in dead else "its lease ran out"
                if await self._store.change(tree.end_session, other, beats):
                    _log.warning("ended registry session %d: %s", other, why)

    async def _begin(self) -> None:
        tree, former, now = self._store.tree, self._session, self._clock.monotonic()
        self._session = await self._store.change(tree.begin_session)
        self._proven = now
        if former:
            await self._store.run(tree.release_lock, former)
        self._others = {}
        self._alone = False  # not known before the first look
        self._last_beat = float("-inf")

    def _living_session(self) -> int:
        if self._lost.is_set():
            raise SessionLost(f"session {self._session} has expired")
        return self._session

    def _lose(self, session: int) -> None:
        if session == self._session and not self._lost.is_set():
            _log.warning("registry session %d is lost", session)
            self._lost.set()
            self._store.dirty_watches()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_ALONE_SECONDS if self._alone else _LOOK_SHARED_SECONDS)
            if self._lost.is_set():
                continue
            try:
                await self._store.look_for_others_changes()
                quiet = self._alone and self._changes_seen == self._store.changes
                beat_every = min(_BEAT_SECONDS, self._timeout / 3)
                if not quiet and self._clock.monotonic() - self._last_beat >= beat_every:
                    await self.beat()
            except SessionLost:
                continue  # the users of this session get SessionLost from their calls
            except (RegistryError, OSError) as error:
                _log.warning("the registry does not answer: %s", error)
            except Exception:  # noqa: BLE001 - without its beats the session would end, and the broker with it
                _log.exception("the registry's session could not be kept up; trying again")

    async def _stop_ticking(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None


def _beat_and_look(tree: SqliteTree, session: int) -> tuple[dict[int, int], set[int]]:
    """Beats if there are others to see it; returns their beats, and which of them are surely dead."""
    others = tree.sessions()
    if others.pop(session, None) is None:
        raise SessionLost(f"session {session} has expired")
    if others:
        try:
            tree.beat(session)
        except (sqlite3.Error, OSError, Unavailable) as error:
            if not is_full(error):
                raise
            _log.warning("no heartbeat of registry session %d, since the disk is full: %s", session, error)
    return others, {other for other in others if tree.is_dead(other)}
