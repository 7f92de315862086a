"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47): how far groups have read.

Topics and partitions that do not exist are refused here, one by one; the rest is for the coordinator, and an
error of the group stands for all of it. Within a topic the refused partitions come first, as in Kafka.

Version notes. OffsetCommit and OffsetFetch 10 name topics by id. OffsetFetch: up to 7 one group, from 8 on
several; null topics (2 and later) ask for all that the group has; version 1 has no error for the group, so
each partition carries it. There are no transactional commits yet, hence nothing that `require_stable` could
have to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import Question, ask, ask_all, caller_of
from ottla.broker.pending import Pending
from ottla.coordinator.effects import Effects, Reply
from ottla.coordinator.groups import Groups, NewOffset
from ottla.coordinator.offsets import NO_OFFSET, ByTopic, Committed
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

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

_TOPIC_IDS_SINCE = 10
_MANY_GROUPS_SINCE = 8
_GROUP_ERROR_SINCE = 2
_NOTHING = Committed(NO_OFFSET)


# -- OffsetCommit -----------------------------------------------------------------------------------------


def offset_commit(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | Pending:
    response = OffsetCommitResponse()
    accepted: list[NewOffset] = []
    answers: list[OffsetCommitResponsePartition] = []
    by_id = context.version >= _TOPIC_IDS_SINCE
    for topic in request.topics:
        image = (
            broker.image.topics_by_id.get(topic.topic_id) if by_id else broker.image.topics.get(topic.name)
        )
        refused, good = [], []
        for each in topic.partitions:
            answer = OffsetCommitResponsePartition(partition_index=each.partition_index)
            if image is None and by_id:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            elif image is None or not 0 <= each.partition_index < len(image.partitions):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                good.append(answer)
                accepted.append(
                    NewOffset(
                        image.name,
                        image.id,
                        each.partition_index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                    )
                )
                continue
            refused.append(answer)
        answers += good
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=refused + good)
        )
    if not accepted:
        return response

    def command(groups: Groups, reply: Reply, effects: Effects) -> None:
        outcomes = groups.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            accepted,
            request.retention_time_ms,
            caller_of(context),
            effects,
        )
        for answer, outcome in zip(answers, outcomes, strict=True):
            answer.error_code = outcome
        effects.answer(reply, response)

    def failed(error: ApiError) -> OffsetCommitResponse:
        too_large = error.code is ErrorCode.RECORD_LIST_TOO_LARGE
        for answer in answers:
            answer.error_code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if too_large else error.code
        return response

    return ask(broker, request.group_id, command, failed)


# -- OffsetFetch ------------------------------------------------------------------------------------------


def offset_fetch(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse | Pending:
    by_id = context.version >= _TOPIC_IDS_SINCE
    if context.version >= _MANY_GROUPS_SINCE:
        questions = [_question(broker, group, by_id) for group in request.groups]
        return ask_all(broker, questions, lambda groups: OffsetFetchResponse(groups=groups))
    topics = request.topics
    only = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
    )
    return ask_all(
        broker, [_question(broker, only, False)], lambda groups: _of_one(groups[0], only, context.version)
    )


def _question(broker: Broker, asked: OffsetFetchRequestGroup, by_id: bool) -> Question:
    def command(groups: Groups, reply: Reply, effects: Effects) -> None:
        committed = groups.committed(asked.group_id, asked.member_id, asked.member_epoch)
        if asked.topics is None:
            topics = _all_topics(broker, committed, by_id)
        else:
            topics = [_topic(broker, topic, committed, by_id) for topic in asked.topics]
        effects.answer(reply, OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics))

    def failed(error: ApiError) -> OffsetFetchResponseGroup:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)

    return Question(asked.group_id, command, failed)


def _topic(
    broker: Broker, asked: OffsetFetchRequestTopics, committed: ByTopic, by_id: bool
) -> OffsetFetchResponseTopics:
    name = broker.topic_name(asked.topic_id) if by_id else asked.name
    code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
    found = committed.get(name, {}) if name is not None else {}
    return OffsetFetchResponseTopics(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[_partition(index, found.get(index, _NOTHING), code) for index in asked.partition_indexes],
    )


def _all_topics(broker: Broker, committed: ByTopic, by_id: bool) -> list[OffsetFetchResponseTopics]:
    topics = []
    for name, partitions in committed.items():
        image = broker.image.topics.get(name)
        if by_id and image is None:
            continue  # there is no id to call it by
        topics.append(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=image.id if image is not None else bytes(16),
                partitions=[_partition(index, partitions[index]) for index in partitions],
            )
        )
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
    group: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """The same answer in the words of the versions that ask for one group."""
    topics = group.topics
    if group.error_code and version < _GROUP_ERROR_SINCE:
        code = error_of(group.error_code)
        topics = [
            OffsetFetchResponseTopics(
                name=t.name, partitions=[_partition(index, _NOTHING, code) for index in t.partition_indexes]
            )
            for t in asked.topics or ()
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
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | Pending:
    known = [
        (topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
        if broker.image.partition(topic.name, each.partition_index) is not None
    ]

    def command(groups: Groups, reply: Reply, effects: Effects) -> None:
        outcomes = groups.delete_offsets(request.group_id, known, effects)
        effects.answer(reply, _deleted(request, dict(zip(known, outcomes, strict=True))))

    return ask(broker, request.group_id, command, lambda error: OffsetDeleteResponse(error_code=error.code))


def _deleted(
    request: OffsetDeleteRequest, outcomes: dict[tuple[str, int], ErrorCode]
) -> OffsetDeleteResponse:
    def partitions(name: str, indexes: Iterable[int]) -> Sequence[OffsetDeleteResponsePartition]:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        listed = [
            OffsetDeleteResponsePartition(
                partition_index=index, error_code=outcomes.get((name, index), unknown)
            )
            for index in indexes
        ]
        return sorted(listed, key=lambda each: each.error_code != unknown)

    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=list(partitions(topic.name, [each.partition_index for each in topic.partitions])),
            )
            for topic in request.topics
        ]
    )
