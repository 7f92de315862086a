"""The registry: where a cluster keeps what must outlive its brokers, and where brokers agree.

A registry is a small tree of nodes, as ZooKeeper made popular: a path holds some bytes, a version that grows
with every change, and a creation id that grows over the whole registry, so that a node deleted and made again
can be distinguished from the old one. This module is the port: the operations, the errors and the promises.
`sqlite_registry` keeps it for all brokers of one machine, `zookeeper_registry` for brokers on many; all back
ends pass the same contract suite (`tests/contract`).

The promises every back end keeps:

- `commit` is all or nothing, and is durable when it returns. It raises `Ambiguous` when the outcome is not
  known (the connection broke after sending): the caller resolves that by reading, never by guessing.
- A registry object is one session. Nodes created ephemeral belong to it and vanish when it ends, expires,
  or its process dies. After that every call raises `SessionLost` until `renew` begins a new session.
- A watch fires once, after the node or the set of its children changed. It may also fire for nothing (a
  lost connection makes everything dirty), so its owner reads again when it fires. Register, then read.
- Nodes are small (at most `MAX_NODE_BYTES`) and commits are bounded (`MAX_COMMIT_OPERATIONS`,
  `MAX_COMMIT_BYTES`): put many changes into one commit, but not all of a large request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

ANY_VERSION = -1
"""Given as a version: do not compare."""

MAX_NODE_BYTES = 1 << 19
"""Half of what ZooKeeper accepts in one packet, so that a node always fits beside its path."""

MAX_COMMIT_OPERATIONS = 1_000
"""This keeps any back end's lock short."""

MAX_COMMIT_BYTES = 900_000
"""Of paths and data. ZooKeeper closes the connection of a client that sends a packet above 1 MB."""

_OPERATION_BYTES = 64
"""What an operation takes beside its path and data, generously."""


class RegistryError(Exception):
    """Anything a registry call can raise."""


class NodeError(RegistryError):
    """An operation that the state of one node forbids; nothing of its commit happened."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNode(NodeError):
    """The node (or the parent of a node to be created) does not exist."""


class NodeExists(NodeError):
    """There is already a node at this path."""


class BadVersion(NodeError):
    """The node's version is not the expected one: another session wrote it."""


class NotEmpty(NodeError):
    """A node with children cannot be deleted."""


class SessionLost(RegistryError):
    """This session has ended; its ephemeral nodes are gone. Nothing of the commit happened."""


class Ambiguous(RegistryError):
    """The commit may or may not have happened. Read to find out."""


class Unavailable(RegistryError):
    """The registry could not be reached or written; nothing happened. Trying again may work."""


class Damaged(Unavailable):
    """The registry cannot be read, since what is stored is not what was written. A person has to mend it."""


@dataclass(frozen=True, slots=True)
class Stat:
    version: int
    creation_id: int


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    version: int
    creation_id: int
    owner: int = 0
    """The session that holds this node if it is ephemeral, else 0."""


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing; the commit fails unless the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check


class Registry(Protocol):
    """One session with a registry. All calls belong to one event loop."""

    @property
    def session_id(self) -> int: ...

    @property
    def lost(self) -> asyncio.Event:
        """Set when this session is found to be lost; a fresh event after `renew`."""
        ...

    def may_be_over(self) -> bool:
        """Whether the nodes of this session may be gone, by this process's own clock.

        True before that can have happened, even when nothing is heard from the registry. Costs no I/O.
        """
        ...

    async def open(self) -> None:
        """Connects and begins a session."""
        ...

    async def renew(self) -> int:
        """Begins a new session if the present one is lost; returns the id of the session that now holds."""
        ...

    def leave_soon(self) -> None:
        """From now on no call waits long for a registry that does not answer: its user is about to end."""
        ...

    async def close(self) -> None:
        """Ends the session (its ephemeral nodes vanish at once) and disconnects."""
        ...

    async def commit(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """Applies all operations in order, or none. A `Stat` for each `Create` and `Set`, else None."""
        ...

    async def get(self, path: str) -> Node:
        """The node, or `NoNode`."""
        ...

    async def find(self, path: str) -> Node | None:
        """The node, or None."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def children(self, path: str) -> list[str]:
        """The names (not paths) of the node's children, sorted; `NoNode` if the node is not there."""
        ...

    async def subtree(self, path: str, without: str = "") -> Mapping[str, Node]:
        """Every node below `path` (not itself) by full path, sorted; empty if there is none.

        `without` and what is below it is left out, and not read at all. What others change meanwhile may be
        in it or not: the reader must be the only writer, or watch.
        """
        ...

    async def watch(self, path: str) -> asyncio.Future[None]:
        """A future done after the node is created, changed or deleted, or gains or loses a child.

        The node need not exist. Cancel the future when it is no longer wanted.
        """
        ...


def operation_bytes(operation: Operation) -> int:
    """How much of `MAX_COMMIT_BYTES` an operation takes."""
    data = operation.data if isinstance(operation, Create | Set) else b""
    return len(operation.path) + len(data) + _OPERATION_BYTES


def check_commit(operations: Sequence[Operation]) -> None:
    """Refuses a commit that no registry takes: a programming error, hence `ValueError`."""
    if len(operations) > MAX_COMMIT_OPERATIONS:
        raise ValueError(f"{len(operations)} operations in one commit, at most {MAX_COMMIT_OPERATIONS}")
    for operation in operations:
        check_path(operation.path)
        if isinstance(operation, Create | Set) and len(operation.data) > MAX_NODE_BYTES:
            size = len(operation.data)
            raise ValueError(f"{operation.path} would hold {size} bytes, at most {MAX_NODE_BYTES}")
    size = sum(map(operation_bytes, operations))
    if size > MAX_COMMIT_BYTES:
        raise ValueError(f"{size} bytes in one commit, at most {MAX_COMMIT_BYTES}")


def check_path(path: str) -> str:
    """Refuses what is not a path: a programming error, hence `ValueError`."""
    if not path.startswith("/") or (path.endswith("/") and path != "/") or "//" in path or "\0" in path:
        raise ValueError(f"not a registry path: {path!r}")
    return path


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
