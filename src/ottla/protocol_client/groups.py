"""Questions and orders about consumer groups, as plain functions over `Wire`.

Everything about a group is known to one broker, its coordinator. It is looked for each time and asked again
when it has moved or is still reading its log. Every function returns what a caller wants to know and raises
ApiError for what the broker refuses.

A group speaks the classic protocol or the consumer protocol (KIP-848); for each there is a request of its own
that describes it, and `describe_group` makes one thing of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages import consumer_group_describe, describe_groups
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_protocol import read_assignment, read_subscription
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.explain_group import ExplainedRebalance, ExplainGroupRequest
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.schema import Request
from ottla.protocol_client.wire import BrokerUnreachable, Patience, Wire, check

Place: TypeAlias = tuple[str, int]
"""A partition of a topic."""

CLASSIC, CONSUMER = "classic", "consumer"
DEAD = "Dead"
GROUP, TRANSACTION = 0, 1
"""What coordinators are asked for, in FindCoordinator."""

T = TypeVar("T")


class ListedGroup(NamedTuple):
    group_id: str
    state: str
    kind: str
    """`classic`, `consumer` or a type that is newer than this client; empty when the broker does not say."""
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    subscribed: tuple[str, ...]
    """Names of topics; a pattern stands as /pattern/."""
    assigned: tuple[Place, ...]
    awaited: tuple[Place, ...] = ()
    """What it shall get as soon as others have let it go (consumer protocol only)."""

    @property
    def name(self) -> str:
        return self.instance_id or self.member_id


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    kind: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...] = field(default=())

    def owners(self) -> dict[Place, GroupMember]:
        return {place: member for member in self.members for place in member.assigned}


# Where a group lives


def coordinator(wire: Wire, group_id: str, kind: int = GROUP) -> int:
    """The broker that coordinates the group, or the transactional id when `kind` is TRANSACTION.

    ApiError when there is none yet; trying again may help.
    """
    request = FindCoordinatorRequest(key=group_id, key_type=kind, coordinator_keys=[group_id])
    response: FindCoordinatorResponse = wire.call(request)
    found: FindCoordinatorResponse | Coordinator = response
    if response.coordinators:
        found = response.coordinators[0]
    check(found.error_code, found.error_message)
    wire.nodes[found.node_id] = (found.host, found.port)
    return found.node_id


def ask(
    wire: Wire,
    group_id: str,
    request: Request,
    answer: Callable[[Any], T],
    *,
    at_most: int | None = None,
    timeout: float | None = None,
    kind: int = GROUP,
    patience: float | None = None,
) -> T:
    """Send `request` to the coordinator; `answer` reads the response and raises ApiError for its errors.

    Errors that pass (no coordinator yet, it has moved, it is loading, it restarts) are waited out, for
    `patience` seconds (the request timeout if None). `at_most` is the highest version that will do.
    """
    waiting = Patience(wire.request_timeout if patience is None else patience)
    while True:
        reached = bool(wire.nodes)
        try:
            node = coordinator(wire, group_id, kind)
            version = wire.connection(node).version_for(type(request), at_most)
            return answer(wire.call(request, version, node, timeout))
        except BrokerUnreachable as error:
            if not reached:
                raise
            waiting.pause(error)
        except ApiError as error:
            waiting.pause(error)


def ask_every_broker(wire: Wire, request: Request) -> Iterator[tuple[int, Any]]:
    """What each broker answers, for responses with one error code. Errors that pass are waited out."""
    wire.metadata([])
    for node in list(wire.nodes):
        waiting = Patience(wire.request_timeout)
        while True:
            response = wire.call(request, node=node)
            try:
                check(response.error_code)
                break
            except ApiError as error:
                waiting.pause(error)
        yield node, response


# Looking


def list_groups(wire: Wire, states: Iterable[str] = (), kinds: Iterable[str] = ()) -> list[ListedGroup]:
    """The groups of all brokers, by name. A broker too old to filter is not asked to: we do it."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(kinds))
    found: dict[str, ListedGroup] = {}
    response: ListGroupsResponse
    for node, response in ask_every_broker(wire, request):
        for group in response.groups:
            found[group.group_id] = ListedGroup(
                group.group_id, group.group_state, group.group_type.lower(), group.protocol_type, node
            )
    wanted_states = {state.lower() for state in states}
    wanted_kinds = {kind.lower() for kind in kinds}
    return sorted(
        group
        for group in found.values()
        if (not wanted_states or group.state.lower() in wanted_states)
        and (not wanted_kinds or group.kind in wanted_kinds)
    )


def describe_group(wire: Wire, group_id: str) -> GroupDescription:
    """State, members and assignments; ApiError(GROUP_ID_NOT_FOUND) when there is no such group."""
    described = _describe_consumer(wire, group_id) or _describe_classic(wire, group_id)
    if described is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    return described


def _describe_consumer(wire: Wire, group_id: str) -> GroupDescription | None:
    """None when it is no group of the consumer protocol, or the broker does not know that protocol."""
    if not wire.offers(ConsumerGroupDescribeRequest):
        return None

    def answer(response: consumer_group_describe.ConsumerGroupDescribeResponse) -> GroupDescription | None:
        group = response.groups[0]
        if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        check(group.error_code, group.error_message)
        return GroupDescription(
            group_id=group_id,
            kind=CONSUMER,
            state=group.group_state,
            assignor=group.assignor_name,
            coordinator=coordinator(wire, group_id),
            members=tuple(sorted(map(_consumer_member, group.members), key=_by_client)),
        )

    return ask(wire, group_id, ConsumerGroupDescribeRequest(group_ids=[group_id]), answer)


def _consumer_member(member: consumer_group_describe.Member) -> GroupMember:
    assigned = _places((t.topic_name, t.partitions) for t in member.assignment.topic_partitions)
    target = _places((t.topic_name, t.partitions) for t in member.target_assignment.topic_partitions)
    regex = member.subscribed_topic_regex
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host.lstrip("/"),
        subscribed=tuple(sorted(member.subscribed_topic_names)) + ((f"/{regex}/",) if regex else ()),
        assigned=assigned,
        awaited=tuple(place for place in target if place not in set(assigned)),
    )


def _describe_classic(wire: Wire, group_id: str) -> GroupDescription | None:
    def answer(response: describe_groups.DescribeGroupsResponse) -> GroupDescription | None:
        group = response.groups[0]
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
            return None
        check(group.error_code, group.error_message)
        return GroupDescription(
            group_id=group_id,
            kind=CLASSIC,
            state=group.group_state,
            assignor=group.protocol_data,
            coordinator=coordinator(wire, group_id),
            members=tuple(
                sorted((_classic_member(m, group.protocol_type) for m in group.members), key=_by_client)
            ),
        )

    return ask(wire, group_id, DescribeGroupsRequest(groups=[group_id]), answer)


def _classic_member(member: describe_groups.DescribedGroupMember, protocol_type: str) -> GroupMember:
    """What it subscribes to and has can be read only if it is a consumer; others have their own language."""
    subscribed: tuple[str, ...] = ()
    assigned: tuple[Place, ...] = ()
    if protocol_type == "consumer":
        try:
            if member.member_metadata:
                subscribed = tuple(sorted(read_subscription(member.member_metadata).topics))
            if member.member_assignment:
                shares = read_assignment(member.member_assignment).assigned_partitions
                assigned = _places((share.topic, share.partitions) for share in shares)
        except Malformed:
            subscribed = assigned = ()
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host.lstrip("/"),
        subscribed=subscribed,
        assigned=assigned,
    )


def _places(shares: Iterable[tuple[str, list[int]]]) -> tuple[Place, ...]:
    return tuple(sorted((topic, partition) for topic, partitions in shares for partition in partitions))


def _by_client(member: GroupMember) -> tuple[str, str]:
    return member.client_id, member.name


def member_counts(wire: Wire, groups: Iterable[ListedGroup]) -> dict[str, int]:
    """How many members each group has, with one or two requests per coordinator. Without those in trouble."""
    found: dict[str, int] = {}
    for node, listed in by_coordinator(groups).items():
        consumers = [group.group_id for group in listed if group.kind == CONSUMER]
        classic = [group.group_id for group in listed if group.kind in (CLASSIC, "")]
        described: list[Any] = []
        if consumers:
            described += wire.call(ConsumerGroupDescribeRequest(group_ids=consumers), node=node).groups
        if classic:
            described += wire.call(DescribeGroupsRequest(groups=classic), node=node).groups
        found |= {group.group_id: len(group.members) for group in described if not group.error_code}
    return found


def by_coordinator(groups: Iterable[ListedGroup]) -> dict[int, list[ListedGroup]]:
    found: dict[int, list[ListedGroup]] = {}
    for group in groups:
        found.setdefault(group.coordinator, []).append(group)
    return found


def rebalances(wire: Wire, group_id: str) -> list[ExplainedRebalance]:
    """The rebalances of the group, the last one first; UnsupportedByBroker when the broker keeps none."""

    def answer(response: Any) -> list[ExplainedRebalance]:
        check(response.error_code, response.error_message)
        found: list[ExplainedRebalance] = response.rebalances
        return found

    return ask(wire, group_id, ExplainGroupRequest(group_id=group_id), answer)


def delete_group(wire: Wire, group_id: str) -> None:
    """Forget a group without members, with its offsets."""

    def answer(response: Any) -> None:
        check(response.results[0].error_code)

    ask(wire, group_id, DeleteGroupsRequest(groups_names=[group_id]), answer)


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Partitions in order, under their topics in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    return topics
