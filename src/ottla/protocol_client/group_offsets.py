"""How far groups have read: offsets committed, asked for and forgotten, as plain functions over `Wire`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol_client.groups import ListedGroup, Place, ask, by_coordinator, by_topic
from ottla.protocol_client.wire import Wire, check

_NAMES_UP_TO = 9
"""The last version of OffsetFetch and OffsetCommit that names topics; then they have ids only."""
_BATCHED_SINCE = 8
"""The first version of OffsetFetch that asks for several groups."""


class Committed(NamedTuple):
    offset: int
    metadata: str


def committed_offsets(
    wire: Wire, group_id: str, *, stable: bool = False, patience: float | None = None
) -> dict[Place, Committed]:
    """All offsets that the group has committed. `stable` waits for transactions that are committing some."""
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=None,
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)],
        require_stable=stable,
    )

    def answer(response: Any) -> dict[Place, Committed]:
        found = response.groups[0] if response.groups else response
        check(found.error_code)
        return _offsets_in(found)

    return ask(wire, group_id, request, answer, at_most=_NAMES_UP_TO, patience=patience)


def committed_offsets_of(wire: Wire, groups: Iterable[ListedGroup]) -> dict[str, dict[Place, Committed]]:
    """The same for many groups, with one request per coordinator. Without groups that are in trouble."""
    found: dict[str, dict[Place, Committed]] = {}
    for node, listed in by_coordinator(groups).items():
        names = [group.group_id for group in listed]
        version = wire.connection(node).version_for(OffsetFetchRequest, _NAMES_UP_TO)
        if version < _BATCHED_SINCE:
            found |= {name: committed_offsets(wire, name) for name in names}
            continue
        asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        response = wire.call(OffsetFetchRequest(groups=asked), version, node)
        found |= {group.group_id: _offsets_in(group) for group in response.groups if not group.error_code}
    return found


def _offsets_in(answer: Any) -> dict[Place, Committed]:
    offsets = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            check(partition.error_code)
            if partition.committed_offset >= 0:
                place = topic.name, partition.partition_index
                offsets[place] = Committed(partition.committed_offset, partition.metadata or "")
    return offsets


def commit_offsets(
    wire: Wire,
    group_id: str,
    offsets: Mapping[Place, int],
    *,
    member_id: str = "",
    generation: int = -1,
) -> None:
    """Write down how far the group has read. Without a member id only a group without members takes it."""
    request = commit_request(group_id, offsets, member_id=member_id, generation=generation)
    ask(wire, group_id, request, _check_partitions, at_most=_NAMES_UP_TO)


def commit_request(
    group_id: str, offsets: Mapping[Place, int], *, member_id: str = "", generation: int = -1
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=p, committed_offset=offsets[topic, p], committed_metadata=""
                    )
                    for p in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )


def delete_offsets(wire: Wire, group_id: str, places: Iterable[Place]) -> None:
    """Forget what the group has committed for these partitions; no member may be reading their topics."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
            )
            for topic, partitions in by_topic(places).items()
        ],
    )

    def answer(response: Any) -> None:
        check(response.error_code)
        _check_partitions(response)

    ask(wire, group_id, request, answer)


def _check_partitions(response: Any) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            check(partition.error_code)
