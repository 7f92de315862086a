"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47): how far groups have read.

Topics and partitions that do not exist are refused here, one by one; the rest is for the coordinator, and an
error of the group stands for all of it. Within a topic the refused partitions come first, as in Kafka.

A commit of many partitions is written in portions, so that others are served in between and no batch becomes
too large; each partition has its own error code. A partition that an OffsetFetch names twice is answered
once, where Kafka answers each time: one entry of four bytes can bring four kilobytes of metadata.

Version notes. OffsetCommit and OffsetFetch 10 name topics by id. OffsetFetch: up to 7 one group, from 8 on
several; null topics (2 and later) ask for all that the group has; version 1 has no error for the group, so
each partition carries it. From 7 on a client may require stable offsets: a partition of which an open
transaction has committed an offset gets UNSTABLE_OFFSET_COMMIT, and the client retries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.broker.commit_portions import Portion, add
from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import GroupCommand, run_all
from ottla.broker.portions import in_portions
from ottla.broker.ports import GroupAccess, ImageAccess, TopicNames
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.group import NewOffset, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.offsets import NO_OFFSET, Committed
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.shard import MayBeReplaced
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.schema import ZERO_UUID

_TOPIC_IDS_SINCE = 10
_MANY_GROUPS_SINCE = 8
_GROUP_ERROR_SINCE = 2
_NOTHING = Committed(NO_OFFSET)
_PAUSE_AFTER = 200
_OFFSETS_AT_A_TIME = 250


# -- OffsetCommit -----------------------------------------------------------------------------------------


class GroupOffsetAccess(GroupAccess, ImageAccess, TopicNames, Protocol):
    """Offsets of groups, and the topics they are for."""


def offset_commit(
    broker: GroupOffsetAccess, request: OffsetCommitRequest, context: RequestContext
) -> Steps[OffsetCommitResponse | Completion[OffsetCommitResponse]]:
    response = OffsetCommitResponse()
    commits: list[Portion] = [Portion()]
    by_id = context.version >= _TOPIC_IDS_SINCE
    for topic in request.topics:
        image = (
            broker.image.topics_by_id.get(topic.topic_id) if by_id else broker.image.topics.get(topic.name)
        )
        refused, good = [], []
        for number, each in enumerate(topic.partitions):
            if not number % _PAUSE_AFTER:
                yield
            answer = OffsetCommitResponsePartition(partition_index=each.partition_index)
            if image is None and by_id:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            elif image is None or not 0 <= each.partition_index < len(image.partitions):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                good.append(answer)
                offset = NewOffset(
                    image.name,
                    image.id,
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
                add(commits, offset, answer)
                continue
            refused.append(answer)
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=refused + good)
        )
    if not commits[0].offsets:
        return response
    commands = (_commit(request, commit, context) for commit in commits)
    return (yield from run_all(broker.groups, commands, lambda _: response))


def _commit(request: OffsetCommitRequest, portion: Portion, context: RequestContext) -> GroupCommand:
    return portion.command(
        OffsetCommit(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            offsets=portion.offsets,
            retention_ms=request.retention_time_ms,
            version=context.version,
        )
    )


# -- OffsetFetch ------------------------------------------------------------------------------------------


class _Topic(NamedTuple):
    """A topic of a request: its name here (None if unknown), as the request names it, and the partitions."""

    known: str | None
    name: str
    topic_id: bytes
    indexes: dict[int, None]


class _Wanted(NamedTuple):
    """What a request wants of one group; `topics` is None for all that it has."""

    group: OffsetFetchRequestGroup
    topics: Sequence[_Topic] | None
    require_stable: bool


class _Found(NamedTuple):
    """What a group had committed when the command ran, or the error."""

    wanted: _Wanted
    committed: Mapping[str, Mapping[int, Committed]]
    unstable: Collection[tuple[str, int]] = ()
    """Partitions that are not answered because a transaction is open."""
    code: ErrorCode = ErrorCode.NONE


def offset_fetch(
    broker: GroupOffsetAccess, request: OffsetFetchRequest, context: RequestContext
) -> Steps[OffsetFetchResponse | Completion[OffsetFetchResponse]]:
    if context.version >= _MANY_GROUPS_SINCE:
        by_id = context.version >= _TOPIC_IDS_SINCE
        return _offsets_of_many(broker, request.groups, by_id, request.require_stable)
    topics = request.topics
    only = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
    )
    return _offsets_of_one(broker, only, context.version, request.require_stable)


def _offsets_of_one(
    broker: GroupOffsetAccess, group: OffsetFetchRequestGroup, version: int, require_stable: bool
) -> Steps[OffsetFetchResponse | Completion[OffsetFetchResponse]]:
    wanted = yield from _wanted(broker, [group], False, require_stable)

    def finish(found: list[_Found]) -> Steps[OffsetFetchResponse]:
        return _of_one((yield from _told(broker, found[0], False)), group, version)

    return (yield from run_all(broker.groups, map(_fetch, wanted), finish))


def _offsets_of_many(
    broker: GroupOffsetAccess, groups: Sequence[OffsetFetchRequestGroup], by_id: bool, require_stable: bool
) -> Steps[OffsetFetchResponse | Completion[OffsetFetchResponse]]:
    wanted = yield from _wanted(broker, groups, by_id, require_stable)

    def finish(found: list[_Found]) -> Steps[OffsetFetchResponse]:
        response = OffsetFetchResponse()
        for each in found:
            response.groups.append((yield from _told(broker, each, by_id)))
        return response

    return (yield from run_all(broker.groups, map(_fetch, wanted), finish))


def _wanted(
    broker: GroupOffsetAccess, groups: Sequence[OffsetFetchRequestGroup], by_id: bool, require_stable: bool
) -> Steps[list[_Wanted]]:
    """What a request wants: each group, topic and partition once, however often it is named."""
    wanted: dict[str, _Wanted] = {}
    topics: dict[str, dict[str | bytes, _Topic]] = {}
    for group in groups:
        of_group = topics.setdefault(group.group_id, {})
        for topic in group.topics or ():
            key = topic.topic_id if by_id else topic.name
            same = of_group.get(key)
            if same is None:
                known = broker.topic_name(topic.topic_id) if by_id else topic.name
                same = of_group[key] = _Topic(known, topic.name, topic.topic_id, {})
            same.indexes.update(dict.fromkeys(topic.partition_indexes))
            yield
        before = wanted.get(group.group_id)
        everything = group.topics is None or (before is not None and before.topics is None)
        wanted[group.group_id] = _Wanted(
            before.group if before else group, None if everything else (), require_stable
        )
        yield
    return [
        each if each.topics is None else each._replace(topics=list(topics[each.group.group_id].values()))
        for each in wanted.values()
    ]


def _fetch(wanted: _Wanted) -> GroupCommand:
    group = wanted.group

    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        committed = groups.committed(group.group_id, group.member_id, group.member_epoch)
        names = committed if wanted.topics is None else [topic.known or "" for topic in wanted.topics]
        # Copies, which are fast: the response is made in slices and must show this moment.
        found = {name: dict(committed[name]) for name in names if name in committed}
        unstable = groups.offsets.pending_of(group.group_id) if wanted.require_stable else ()
        effects.answer(reply, _Found(wanted, found, unstable))

    return GroupCommand(group.group_id, command, lambda error: _Found(wanted, {}, code=_retried(error)))


def _retried(error: ApiError) -> ErrorCode:
    """The error under which every client asks again, where the offsets may be known here in a moment.

    librdkafka asks again after COORDINATOR_LOAD_IN_PROGRESS. After COORDINATOR_NOT_AVAILABLE or
    NOT_COORDINATOR it does not read the partitions of the request until the next rebalance. If another broker
    has taken over, this one knows it soon, and says so then.
    """
    is_late = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE or isinstance(error, MayBeReplaced)
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_late else error.code


def _told(broker: GroupOffsetAccess, found: _Found, by_id: bool) -> Steps[OffsetFetchResponseGroup]:
    answer = OffsetFetchResponseGroup(group_id=found.wanted.group.group_id, error_code=found.code)
    if found.code:
        return answer
    topics = found.wanted.topics
    if topics is None:
        topics = _all_topics(broker, found.committed, by_id)
    number = 0
    for topic in topics:
        committed = found.committed.get(topic.known or "", {})
        code = ErrorCode.UNKNOWN_TOPIC_ID if topic.known is None else ErrorCode.NONE
        partitions = []
        for index in topic.indexes:
            if not code and (topic.known, index) in found.unstable:
                partitions.append(_partition(index, _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                partitions.append(_partition(index, committed.get(index, _NOTHING), code))
            number += 1
            if not number % _PAUSE_AFTER:
                yield
        answer.topics.append(
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
        yield
    return answer


def _all_topics(
    broker: GroupOffsetAccess, committed: Mapping[str, Mapping[int, Committed]], by_id: bool
) -> list[_Topic]:
    """All that a group has, apart from topics that there is no id to call by."""
    topics = []
    for name, partitions in committed.items():
        image = broker.image.topics.get(name)
        if image is not None or not by_id:
            topic_id = image.id if image is not None else ZERO_UUID
            topics.append(_Topic(name, name, topic_id, dict.fromkeys(partitions)))
    return topics


def _partition(
    index: int, committed: Committed, code: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def _of_one(
    group: OffsetFetchResponseGroup, wanted: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """The same response for the versions that have one group."""
    topics = group.topics
    if group.error_code and version < _GROUP_ERROR_SINCE:
        code = error_of(group.error_code)
        topics = [
            OffsetFetchResponseTopics(
                name=t.name, partitions=[_partition(index, _NOTHING, code) for index in t.partition_indexes]
            )
            for t in wanted.topics or ()
        ]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


# -- OffsetDelete -----------------------------------------------------------------------------------------


def offset_delete(
    broker: GroupOffsetAccess, request: OffsetDeleteRequest, context: RequestContext
) -> Steps[OffsetDeleteResponse | Completion[OffsetDeleteResponse]]:
    known: dict[tuple[str, int], None] = {}
    for topic in request.topics:
        for number, each in enumerate(topic.partitions):
            if broker.image.partition(topic.name, each.partition_index) is not None:
                known[topic.name, each.partition_index] = None
            if not number % _PAUSE_AFTER:
                yield

    def portion(some: Sequence[tuple[str, int]]) -> GroupCommand:
        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            outcomes = groups.delete_offsets(request.group_id, some, effects)
            effects.answer(reply, zip(some, outcomes, strict=True))

        return GroupCommand(request.group_id, command, lambda error: error)

    def finish(answers: list[Any]) -> OffsetDeleteResponse | Steps[OffsetDeleteResponse]:
        for answer in answers:
            if isinstance(answer, ApiError):
                return OffsetDeleteResponse(error_code=answer.code)
        return _deleted(request, dict(pair for answer in answers for pair in answer))

    # At least one command, since the group itself may have an error.
    portions = list(in_portions(list(known), _OFFSETS_AT_A_TIME)) or [[]]
    return (yield from run_all(broker.groups, map(portion, portions), finish))


def _deleted(
    request: OffsetDeleteRequest, outcomes: dict[tuple[str, int], ErrorCode]
) -> Steps[OffsetDeleteResponse]:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = OffsetDeleteResponse()
    for topic in request.topics:
        refused: list[OffsetDeleteResponsePartition] = []
        others: list[OffsetDeleteResponsePartition] = []
        for number, each in enumerate(topic.partitions):
            code = outcomes.get((topic.name, each.partition_index), unknown)
            answer = OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
            (refused if code == unknown else others).append(answer)
            if not number % _PAUSE_AFTER:
                yield
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=refused + others))
    return response
