"""A group as nodes of the registry, laid out as the first Kafka kept its consumers there. Pure.

    /consumers/G                   which broker coordinates the group, and in which leader epoch
    /consumers/G/ids/M             ephemeral: a member, with the topics that it reads
    /consumers/G/owners/T/P        ephemeral: the member that reads this partition
    /consumers/G/offsets/T/P       the offset that the group has committed

It is a copy for people and tools that look into the registry. No broker reads it: the truth is in
`__consumer_offsets` (docs/decisions/019-groups-in-the-registry.md). The coordinator writes it by
`GroupProjector`; the ephemeral nodes belong to its session, not to those of the members.

Here is what the nodes of a group are, and which operations lead from those that are there to these. The node
of the group is the fence: a coordinator claims it in the epoch of its shard, and every commit checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ottla.cluster.layout import CONSUMERS, from_bytes, named_by, node_name, to_bytes
from ottla.cluster.registry import MAX_NODE_BYTES, Create, Delete, Node, Operation, Set
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_members import Member as ClassicMember
from ottla.coordinator.classic_phases import Phase
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_member import Member as ConsumerMember
from ottla.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group
from ottla.coordinator.offsets import Committed, GroupOffsets
from ottla.protocol.codec import Malformed
from ottla.protocol.messages.consumer_protocol import read_assignment, read_subscription

_FOLDERS = IDS, OWNERS, OFFSETS = "ids", "owners", "offsets"

_READABLE_BYTES = 1 << 18
"""Of what a classic member sent. Reading more would take too long; it is shown without."""

TopicName: TypeAlias = Callable[[bytes], str | None]
"""The name of a topic, by its id."""


class Wanted(NamedTuple):
    data: bytes = b""
    ephemeral: bool = False


Present: TypeAlias = dict[str, bytes | None]
"""What a group has in the registry, by path. None: a node of another session, which must be made anew."""


def group_path(group_id: str) -> str:
    return f"{CONSUMERS}/{node_name(group_id)}"


def group_of(node: str) -> str:
    """The group that a child of `CONSUMERS` is about."""
    return named_by(node)


# -- the claim --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """By which a coordinator makes the nodes of a group its own."""

    coordinator: int
    topic_id: str
    """Of `__consumer_offsets`: when that is made again, its epochs begin again."""
    partition: int
    leader_epoch: int

    @property
    def data(self) -> bytes:
        return to_bytes(
            {
                "coordinator": self.coordinator,
                "offsets_topic": self.topic_id,
                "offsets_partition": self.partition,
                "leader_epoch": self.leader_epoch,
            }
        )

    def yields_to(self, node: Node) -> bool:
        """Whether the node of the group shows a later coordinator. What no broker wrote does not count."""
        try:
            value = from_bytes(node.data)
            same_log = (value["offsets_topic"], value["offsets_partition"]) == (self.topic_id, self.partition)
            return same_log and int(value["leader_epoch"]) > self.leader_epoch
        except (ValueError, LookupError, TypeError):
            return False


def claimed_over(node: Node | None, path: str, claim: Claim) -> tuple[Operation, int]:
    """The operation that claims a group, and the version that its node has then."""
    if node is None:
        return Create(path, claim.data), 0
    return Set(path, claim.data, node.version), node.version + 1


# -- the nodes of a group ---------------------------------------------------------------------------------


class GroupSnapshot(NamedTuple):
    """What is shown of a group, as it was at one moment."""

    protocol: str | None
    """Of a classic group of consumers: the one its members have agreed on."""
    has_owners: bool
    members: list[ClassicMember | ConsumerMember]
    expressions: Mapping[str, frozenset[str]]
    """The topics that match the regular expressions of members."""
    offsets: GroupOffsets


def snapshot_of(group: Group, offsets: GroupOffsets) -> GroupSnapshot:
    """Shares what is immutable, so that it takes little time even for a large group."""
    copied: dict[str, dict[int, Committed]] = {topic: dict(found) for topic, found in offsets.items()}
    members = list(group.members.values())
    if isinstance(group, ConsumerGroup):
        expressions = {regex: resolved.topics for regex, resolved in group.state.regexes.items()}
        return GroupSnapshot(None, True, members, expressions, copied)
    reads = isinstance(group, ClassicGroup) and group.protocol_type == CONSUMER_PROTOCOL_TYPE
    # While a classic group gathers, the last assignment says nothing about who reads what.
    stable = isinstance(group, ClassicGroup) and group.phase is Phase.STABLE
    protocol = group.protocol if isinstance(group, ClassicGroup) and reads else None
    return GroupSnapshot(protocol, reads and stable, members, {}, copied)


def nodes_of(path: str, group: GroupSnapshot, topic_name: TopicName) -> Iterator[tuple[str, Wanted]]:
    """All nodes below that of the group, parents before children."""
    for folder in _FOLDERS:
        yield f"{path}/{folder}", Wanted()
    for member in group.members:
        yield f"{path}/{IDS}/{node_name(member.member_id)}", Wanted(_member_data(member, group), True)
    if group.has_owners:
        owned = (
            (topic, partition, member.member_id.encode())
            for member in group.members
            for topic, partition in _owned(member, topic_name)
        )
        yield from _by_partition(f"{path}/{OWNERS}", owned, ephemeral=True)
    committed = (
        (topic, partition, b"%d" % found.offset)
        for topic, partitions in group.offsets.items()
        for partition, found in partitions.items()
    )
    yield from _by_partition(f"{path}/{OFFSETS}", committed, ephemeral=False)


def _by_partition(
    folder: str, values: Iterable[tuple[str, int, bytes]], *, ephemeral: bool
) -> Iterator[tuple[str, Wanted]]:
    folders: set[str] = set()
    for topic, partition, data in values:
        place = f"{folder}/{node_name(topic)}"
        if place not in folders:
            folders.add(place)
            yield place, Wanted()
        yield f"{place}/{partition}", Wanted(data, ephemeral)


def _member_data(member: ClassicMember | ConsumerMember, group: GroupSnapshot) -> bytes:
    """As consumers wrote it: each topic with the number of its readers in this member, which is one now."""
    topics: Iterable[str]
    if isinstance(member, ConsumerMember):
        topics = member.topics | group.expressions.get(member.regex, frozenset())
        pattern = "white_list" if member.regex else "static"
    else:
        topics, pattern = _subscribed(member, group.protocol), "static"
    value: dict[str, object] = {
        "version": 1,
        "pattern": pattern,
        "client_id": member.client_id,
        "host": member.client_host,
    }
    data = to_bytes(value | {"subscription": dict.fromkeys(sorted(topics), 1)})
    return data if len(data) <= MAX_NODE_BYTES else to_bytes(value)


def _subscribed(member: ClassicMember, protocol: str | None) -> list[str]:
    metadata = member.metadata(protocol)
    if protocol is None or len(metadata) > _READABLE_BYTES:
        return []
    try:
        return list(read_subscription(metadata).topics)
    except Malformed:
        return []


def _owned(member: ClassicMember | ConsumerMember, topic_name: TopicName) -> Iterator[tuple[str, int]]:
    """The partitions that a member reads. One that it has to give back is its own until it has done so."""
    if isinstance(member, ConsumerMember):
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                name = topic_name(topic_id)
                if name is not None:
                    yield from ((name, partition) for partition in partitions)
        return
    if not member.assignment or len(member.assignment) > _READABLE_BYTES:
        return
    try:
        assigned = read_assignment(member.assignment).assigned_partitions
    except Malformed:
        return
    for each in assigned:
        yield from ((each.topic, partition) for partition in each.partitions)


# -- from what is there to what is wanted -----------------------------------------------------------------


def present_from(nodes: Mapping[str, Node], session: int) -> Present:
    """What was read of a group; ephemeral nodes of other sessions have to be made anew."""
    return {path: node.data if node.owner in (0, session) else None for path, node in nodes.items()}


def is_ephemeral(group: str, path: str) -> bool:
    """Whether a node below that of `group` is one that goes with the coordinator's session."""
    match path[len(group) + 1 :].split("/"):
        case ["ids", _] | ["owners", _, _]:
            return True
    return False


def changes(present: Present, wanted: Mapping[str, Wanted]) -> Iterator[Operation]:
    """Deletions first, children before parents; then the rest, parents before children."""
    for path in sorted(present, reverse=True):
        if path not in wanted or present[path] is None:
            yield Delete(path)
    for path, node in wanted.items():
        found = present.get(path)
        if found is None:
            yield Create(path, node.data, node.ephemeral)
        elif found != node.data:
            yield Set(path, node.data)


def apply(present: Present, operation: Operation) -> None:
    """The operation has been committed."""
    if isinstance(operation, Create | Set):
        present[operation.path] = operation.data
    elif isinstance(operation, Delete):
        present.pop(operation.path, None)
