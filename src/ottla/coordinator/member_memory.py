"""The memory that groups and their members use, accounted with all other memory of clients.

A member keeps what its client sent when it joined, and a member that waits in a rebalance is in no log yet:
nothing but this limits it. `settle` compares a group, after each change, with what was accounted for. A
client that wants to join when no memory is left is told to retry later; members that have been idle for
longest may be evicted to free memory, and join again if they still exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ottla.coordinator.classic_members import Member as ClassicMember
from ottla.coordinator.consumer_member import Member as ConsumerMember
from ottla.coordinator.group import CONSUMER, Caller, Group
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode

MEMBER = "group member"
GROUP = "group"
_MEMBER_BYTES = 1200
"""Of a member besides its texts: the object, its timer, its entries in dictionaries."""
_GROUP_BYTES = 2000
_TEXT_BYTES = 60
"""Of each text or piece of bytes besides its length."""


class Account(Protocol):
    """The account of all memory of clients; see `ottla.broker.client_memory`."""

    def admit(self, address: str, client: str, kind: str, size: int) -> bool: ...

    def hold(
        self, address: str, client: str, kind: str, size: int, evict: Callable[[str], None] | None = None
    ) -> Any: ...

    def resize(self, holding: Any, size: int) -> None: ...

    def touch(self, holding: Any) -> None: ...

    def abandon(self, holding: Any) -> None: ...

    def release(self, holding: Any) -> None: ...

    def stay(self, holding: Any) -> None: ...


Evict = Callable[[str, str], None]
"""(group id, member id): remove a member soon."""


class _Accounted:
    """One group as it was when it was settled last."""

    __slots__ = ("group", "held", "members", "pending")

    def __init__(self, group: Any) -> None:
        self.group = group
        self.members: Mapping[str, Any] | None = None
        self.pending: frozenset[str] = frozenset()
        self.held: dict[str, tuple[Any, Any]] = {}  # the member as it was, and its holding


class MemberMemory:
    """Of the groups of one shard."""

    def __init__(self, account: Account, evict: Evict) -> None:
        self._account = account
        self._evict = evict
        self._groups: dict[str, _Accounted] = {}

    def check_free(self, group_id: str, size: int, caller: Caller) -> None:
        """ApiError, to try again later, when there is no memory for a new member or group."""
        if group_id not in self._groups:
            size += _GROUP_BYTES + 2 * len(group_id)
        client = shown(caller.client_id) or "a client without id"
        if not self._account.admit(_address(caller.client_host), client, MEMBER, _MEMBER_BYTES + size):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "There is no memory for another member.")

    def settle(self, group_id: str, group: Group | None, client_host: str = "") -> None:
        """The group is as it is now, or gone. `client_host` is the client whose request made the change."""
        accounted = self._groups.get(group_id)
        if group is None:
            if accounted is not None:
                self._release(group_id, accounted)
            return
        pending, members = group.pending, group.members
        if accounted is None:
            host = client_host or next((m.client_host for m in members.values()), "")
            size = _GROUP_BYTES + 2 * len(group_id)
            holding = self._account.hold(_address(host), f"group {shown(group_id)}", GROUP, size)
            accounted = self._groups[group_id] = _Accounted(holding)
        if members is accounted.members and pending is accounted.pending:
            return
        held = accounted.held
        for member_id, member in members.items():
            before = held.get(member_id)
            if before is None or before[0] is not member:
                self._settle_member(group_id, member_id, member, before, held)
        for member_id in pending:
            if member_id not in held:
                size = _MEMBER_BYTES + 3 * len(member_id)
                holding = self._hold(group_id, member_id, client_host, shown(member_id), size)
                held[member_id] = (None, holding)
        for member_id in held.keys() - members.keys() - pending:
            self._account.release(held.pop(member_id)[1])
        # A classic group changes its mapping in place, so the same mapping may hold other members later.
        accounted.members = members if group.kind == CONSUMER else None
        accounted.pending = pending

    def _settle_member(
        self,
        group_id: str,
        member_id: str,
        member: ClassicMember | ConsumerMember,
        before: tuple[Any, Any] | None,
        held: dict[str, tuple[Any, Any]],
    ) -> None:
        size = _MEMBER_BYTES + _size_of(member)
        if before is None:
            client = f"{shown(member.client_id)} in group {shown(group_id)}"
            holding = self._hold(group_id, member_id, member.client_host, client, size)
        else:
            holding = before[1]
            self._account.resize(holding, size)
            self._account.touch(holding)
        held[member_id] = (member, holding)

    def _hold(self, group_id: str, member_id: str, host: str, client: str, size: int) -> Any:
        return self._account.hold(
            _address(host), client, MEMBER, size, lambda why: self._evict(group_id, member_id)
        )

    def touch(self, group_id: str, member_id: str) -> None:
        """The member has sent a request."""
        self._each(group_id, member_id, self._account.touch)

    def abandoned(self, group_id: str, member_id: str) -> None:
        """The member's client has gone while it waited for an answer."""
        self._each(group_id, member_id, self._account.abandon)

    def not_evicted(self, group_id: str, member_id: str) -> None:
        """A member that was to be evicted is still there."""
        self._each(group_id, member_id, self._account.stay)

    def _each(self, group_id: str, member_id: str, tell: Callable[[Any], None]) -> None:
        accounted = self._groups.get(group_id)
        found = accounted.held.get(member_id) if accounted is not None else None
        if found is not None:
            tell(found[1])

    def _release(self, group_id: str, accounted: _Accounted) -> None:
        for _, holding in accounted.held.values():
            self._account.release(holding)
        self._account.release(accounted.group)
        del self._groups[group_id]

    def clear(self) -> None:
        """The shard is gone, and all groups with it."""
        for group_id, accounted in list(self._groups.items()):
            self._release(group_id, accounted)


def joining_size(protocols: Any, *texts: str | None) -> int:
    """What a JoinGroup request makes a group keep."""
    size = sum(2 * _TEXT_BYTES + len(each.name) + len(each.metadata) for each in protocols)
    return size + sum(3 * len(text) for text in texts if text)


def subscribing_size(topics: Any, *texts: str | None) -> int:
    """What a ConsumerGroupHeartbeat makes a group keep of a member."""
    return sum(_TEXT_BYTES + len(topic) for topic in topics or ()) + sum(3 * len(t) for t in texts if t)


def _size_of(member: ClassicMember | ConsumerMember) -> int:
    texts = 3 * (len(member.member_id) + len(member.client_id) + len(member.instance_id or ""))
    if isinstance(member, ClassicMember):
        wanted = sum(2 * _TEXT_BYTES + len(name) + len(metadata) for name, metadata in member.protocols)
        return texts + wanted + len(member.assignment)
    topics = sum(_TEXT_BYTES + len(topic) for topic in member.topics)
    owned = sum(len(partitions) for partitions in (*member.assigned.values(), *member.revoking.values()))
    return texts + topics + 2 * len(member.regex) + 100 * owned


def _address(client_host: str) -> str:
    """Kafka writes addresses with a slash before them."""
    return client_host.removeprefix("/")
