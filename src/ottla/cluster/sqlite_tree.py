"""The registry's tree as two SQLite tables: nodes and sessions.

Synchronous and single-threaded: `SqliteTree` owns one connection and is called on one thread, the store's
(`sqlite_registry`). Every change is one `BEGIN IMMEDIATE` transaction, so that several processes on one
machine may share the file: the holder of the write lock sees everything committed before.

Durability: the file is in WAL mode; `commit` runs with `synchronous=FULL`, which syncs the WAL before it
returns, so a committed node survives power loss. Heartbeats and session rows need not survive it (a session
does not), so they are written with `synchronous=NORMAL`, which does not sync.

On a full disk a commit that may help to free space may use the `reserve`, and so may a new session: without
them no topic could be deleted.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ottla.cluster.registry import (
    ANY_VERSION,
    Ambiguous,
    BadVersion,
    Check,
    Create,
    Damaged,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionLost,
    Set,
    Stat,
    Unavailable,
    check_commit,
    check_path,
    parent_of,
)
from ottla.cluster.reserve import Reserve
from ottla.cluster.session_locks import SessionLocks

_SCHEMA = (
    # `created` is the number of the transaction that made the node; `owner` the session of an ephemeral one.
    """CREATE TABLE nodes (
        path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,
        version INTEGER NOT NULL, created INTEGER NOT NULL, owner INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX nodes_by_parent ON nodes (parent, created)",
    "CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner != 0",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, beats INTEGER NOT NULL)",
    "CREATE TABLE transactions (last INTEGER NOT NULL)",
    "INSERT INTO transactions VALUES (0)",
    "PRAGMA user_version = 1",
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_SECONDS = 10.0
"""How long to wait for another process's transaction; each lasts milliseconds."""
LAST_BUSY_SECONDS = 1.0
"""How long at the end of a process, which others notice in any case."""
_BUSY_SLICE_MS = 200
"""After so long a wait for the lock the patience is looked at again."""
_WAL_ATTEMPTS = 200
"""In that time, where SQLite does not wait by itself."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Signature = tuple[int, int, int, int]
ABSENT: Signature = (0, 0, 0, 0)
"""Of a node that is not there."""


def unavailable(error: sqlite3.Error | OSError, where: str = "") -> Unavailable:
    """The error as the registry's callers know it: the file is damaged, or something may pass."""
    code = getattr(error, "sqlite_errorcode", None)
    damaged = code is not None and code & 0xFF in _DAMAGED
    return (Damaged if damaged else Unavailable)(f"{where}: {error}" if where else str(error))


def is_full(error: BaseException) -> bool:
    """Whether the disk was full: SQLite says so, or it could not extend one of its files."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    code = getattr(cause, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class SqliteTree:
    def __init__(
        self, path: Path | None, *, durable: bool, frees_space: Callable[[Sequence[Operation]], bool]
    ) -> None:
        """Opens the file, making it if need be; None keeps the tree in memory.

        `frees_space` says which commits may use the reserve of a full disk.
        """
        self.patience = _BUSY_SECONDS
        """Seconds to wait for the lock; may be set from another thread."""
        self._durable = durable and path is not None
        self._frees_space = frees_space
        self._reserve = Reserve(path.with_name(path.name + ".reserve")) if path else None
        self._tried = 0
        """The number of the last transaction that was tried."""
        self._locks = SessionLocks(path.with_name(path.name + ".sessions")) if path else None
        self._with_reserve(lambda: self._open(path), lambda: True)
        if self._reserve:
            self._reserve.hold()

    def _open(self, path: Path | None) -> None:
        name = str(path) if path else ":memory:"
        self._connection = sqlite3.connect(name, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._execute("PRAGMA synchronous = NORMAL")
            if path:
                self._use_write_ahead_log()
            self._make_schema()
            self._data_version = self._read_data_version()
        except BaseException:
            self._connection.close()
            raise

    def _use_write_ahead_log(self) -> None:
        """For this SQLite does not wait while another process opens or closes the file: it fails at once."""
        for attempt in range(_WAL_ATTEMPTS):
            try:
                self._execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS - 1:
                    raise
            time.sleep(_BUSY_SECONDS / _WAL_ATTEMPTS)

    def close(self) -> None:
        self._connection.close()
        if self._locks:
            self._locks.close()

    # Changes

    def commit(self, operations: Sequence[Operation], session: int) -> list[Stat | None]:
        check_commit(operations)
        stats = self._with_reserve(
            lambda: self._commit(operations, session),
            lambda: self._frees_space(operations) and not self._has_happened(self._tried),
        )
        if self._reserve:
            self._reserve.hold()
        return stats

    def _commit(self, operations: Sequence[Operation], session: int) -> list[Stat | None]:
        with self._transaction(sync=self._durable):
            if not self._session_exists(session):
                raise SessionLost(f"session {session} has expired")
            self._tried = self._next_transaction()
            return [self._apply(operation, self._tried, session) for operation in operations]

    def _with_reserve(self, work: Callable[[], T], allowed: Callable[[], bool]) -> T:
        """What `work` gives; where the disk is full it is done once more with the space of the reserve."""
        try:
            return work()
        except (sqlite3.Error, Unavailable, Ambiguous) as error:
            if not (self._reserve and is_full(error) and allowed() and self._reserve.release()):
                raise
            _log.warning("the disk is full: using the space that is kept back for the registry")
        return work()

    def _has_happened(self, transaction: int) -> bool:
        """Whether a transaction that ended in an error may be in the file all the same."""
        return int(self._one("SELECT last FROM transactions")[0]) >= transaction

    def _apply(self, operation: Operation, transaction: int, session: int) -> Stat | None:
        path = operation.path
        match operation:
            case Create(data=data, ephemeral=ephemeral):
                return self._create(path, data, transaction, session if ephemeral else 0)
            case Set(data=data, version=version):
                row = self._expect(path, version)
                self._execute("UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?", (data, path))
                return Stat(row[0] + 1, row[1])
            case Delete(version=version):
                self._expect(path, version)
                if self._one("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)):
                    raise NotEmpty(path)
                self._execute("DELETE FROM nodes WHERE path = ?", (path,))
                return None
            case Check(version=version):
                self._expect(path, version)
                return None

    def _create(self, path: str, data: bytes, transaction: int, owner: int) -> Stat:
        parent = parent_of(path)
        if parent != "/":
            row = self._one("SELECT owner FROM nodes WHERE path = ?", (parent,))
            if row is None:
                raise NoNode(parent)
            if row[0]:
                raise ValueError(f"{parent} is ephemeral and cannot have children")
        try:
            self._execute(
                "INSERT INTO nodes VALUES (?, ?, ?, 0, ?, ?)", (path, parent, data, transaction, owner)
            )
        except sqlite3.IntegrityError:
            raise NodeExists(path) from None
        return Stat(0, transaction)

    def _expect(self, path: str, version: int) -> tuple[int, int]:
        row: tuple[int, int] | None = self._one("SELECT version, created FROM nodes WHERE path = ?", (path,))
        if row is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, row[0]):
            raise BadVersion(path)
        return row

    # Reads

    def get(self, path: str) -> Node | None:
        row = self._one("SELECT data, version, created, owner FROM nodes WHERE path = ?", (check_path(path),))
        return Node(*row) if row else None

    def children(self, path: str) -> list[str]:
        if path != "/" and self.get(path) is None:
            raise NoNode(path)
        start = len(path) + (path != "/")
        rows = self._execute("SELECT path FROM nodes WHERE parent = ? ORDER BY path", (check_path(path),))
        return [row[0][start:] for row in rows]

    def subtree(self, path: str, without: str = "") -> dict[str, Node]:
        start = check_path(path).rstrip("/") + "/"
        rows = self._execute(
            # "0" is the character after "/": the range holds exactly what starts with the path and a slash.
            "SELECT path, data, version, created, owner FROM nodes WHERE path > ? AND path < ?"
            " AND path != ? AND NOT (path > ? AND path < ?) ORDER BY path",
            (start, start[:-1] + "0", without, without + "/", without + "0" if without else ""),
        )
        return {row[0]: Node(row[1], row[2], row[3], row[4]) for row in rows}

    def signature(self, path: str) -> Signature:
        """What a watch compares: it differs whenever the node or the set of its children changed.

        Creation numbers only grow, so a child made raises their maximum, and children only deleted lower
        their count: the two together differ for any two sets.
        """
        node = self._one("SELECT created, version FROM nodes WHERE path = ?", (path,)) or (0, 0)
        children = self._one("SELECT count(*), max(created) FROM nodes WHERE parent = ?", (path,))
        return (*node, children[0], children[1] or 0)

    def changed_by_others(self) -> bool:
        """Whether another connection has committed since the last time this was asked."""
        version = self._read_data_version()
        changed = version != self._data_version
        self._data_version = version
        return changed

    # Sessions

    def begin_session(self) -> int:
        """A new session; dead ones are cleared away first, so that a restarted broker need not wait."""
        return self._with_reserve(self._begin_session, lambda: True)

    def _begin_session(self) -> int:
        session = 0
        dead = []
        try:
            with self._transaction(sync=False):
                dead = [other for other in self.sessions() if self.is_dead(other)]
                for other in dead:
                    self._remove_session(other)
                session = self._next_transaction()
                self._execute("INSERT INTO sessions VALUES (?, 0)", (session,))
                if self._locks:
                    self._locks.hold(session)
        except BaseException:
            if self._locks and session:
                self._locks.forget(session)
            raise
        if self._locks:
            for other in dead:
                self._locks.forget(other)
        return session

    def beat(self, session: int) -> None:
        with self._transaction(sync=False):
            self._execute("UPDATE sessions SET beats = beats + 1 WHERE id = ?", (session,))
            if not self._session_exists(session):
                raise SessionLost(f"session {session} has expired")

    def sessions(self) -> dict[int, int]:
        """Every session, with the number of its heartbeats."""
        return dict(self._execute("SELECT id, beats FROM sessions").fetchall())

    def is_dead(self, session: int) -> bool:
        return self._locks is not None and self._locks.is_dead(session)

    def end_session(self, session: int, beats: int | None = None) -> bool:
        """Removes the session and its ephemeral nodes; with `beats`, only if it has not beaten since."""
        with self._transaction(sync=False):
            row = self._one("SELECT beats FROM sessions WHERE id = ?", (session,))
            if row is None or beats not in (None, row[0]):
                return False
            self._remove_session(session)
        if self._locks:
            self._locks.forget(session)
        return True

    def release_lock(self, session: int) -> None:
        if self._locks:
            self._locks.release(session)

    def _remove_session(self, session: int) -> None:
        self._next_transaction()
        self._execute("DELETE FROM nodes WHERE owner = ?", (session,))
        self._execute("DELETE FROM sessions WHERE id = ?", (session,))

    def _session_exists(self, session: int) -> bool:
        return self._one("SELECT 1 FROM sessions WHERE id = ?", (session,)) is not None

    # SQL

    def _make_schema(self) -> None:
        if self._one("PRAGMA user_version")[0] == 1:
            return
        with self._transaction(sync=False):
            if self._one("PRAGMA user_version")[0] == 0:  # unless another process was faster
                for statement in _SCHEMA:
                    self._execute(statement)

    def _next_transaction(self) -> int:
        return int(self._one("UPDATE transactions SET last = last + 1 RETURNING last")[0])

    def _read_data_version(self) -> int:
        return int(self._one("PRAGMA data_version")[0])

    @contextlib.contextmanager
    def _transaction(self, *, sync: bool) -> Iterator[None]:
        try:
            self._execute("PRAGMA synchronous = FULL" if sync else "PRAGMA synchronous = NORMAL")
            self._begin()
        except sqlite3.Error as error:
            raise unavailable(error) from error
        try:
            yield
        except BaseException as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise unavailable(error) from error
            raise
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            still_open = self._connection.in_transaction
            self._roll_back()
            if still_open:
                raise unavailable(error) from error
            # The transaction ended in an error of the disk: its frames may or may not be in the file.
            raise Ambiguous(str(error)) from error

    def _begin(self) -> None:
        began = time.monotonic()
        self._execute(f"PRAGMA busy_timeout = {_BUSY_SLICE_MS}")
        try:
            while True:
                try:
                    self._execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                    if not busy or time.monotonic() - began >= self.patience:
                        if self.patience <= LAST_BUSY_SECONDS:
                            self.patience = 0.0  # once is enough at the end
                        raise
        finally:
            self._execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def _execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, parameters)

    def _one(self, sql: str, parameters: Sequence[object] = ()) -> Any:
        """The first row or None. All rows are fetched: a statement left open would hold up the commit."""
        rows = self._execute(sql, parameters).fetchall()
        return rows[0] if rows else None
