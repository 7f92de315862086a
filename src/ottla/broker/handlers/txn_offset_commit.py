"""TxnOffsetCommit (28): offsets of a group that count when the transaction of a producer commits.

The group's coordinator asks that of the transaction first whether the group's partition of
`__consumer_offsets` is part of the transaction (`TransactionVerification`). Then the offsets are written like
those of OffsetCommit, in the transaction; they are pending until a marker ends it (WriteTxnMarkers).

Version notes. Before 3 the request does not say which member commits, so a producer whose partitions have
moved to another member is not noticed. Up to 4 the client has added the group to the transaction by
AddOffsetsToTxn; from 5 on this request does. Versions 0 and 1 have no COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from ottla.broker.commit_portions import Portion, add
from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import run_all
from ottla.broker.ports import GroupAccess, ImageAccess, SlicedWork, VerificationAccess
from ottla.broker.request_scheduler import Steps
from ottla.broker.transaction_verification import (
    MOST_VERIFICATIONS,
    Abilities,
    Verification,
    of_committer,
)
from ottla.completion import Completion
from ottla.coordinator.group import NewOffset, OffsetCommit
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.coordinator.runtime.shard import TransactionalProducer
from ottla.protocol.batches import NO_SEQUENCE
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_PAUSE_AFTER = 200
_LOADING_SINCE = 2

_Answer = TxnOffsetCommitResponse | Completion[TxnOffsetCommitResponse]


class TransactionalOffsets(GroupAccess, ImageAccess, SlicedWork, VerificationAccess, Protocol):
    """Offsets of groups, and the coordinators of transactions."""


def txn_offset_commit(
    broker: TransactionalOffsets, request: TxnOffsetCommitRequest, context: RequestContext
) -> Steps[_Answer | Coroutine[Any, Any, _Answer]]:
    response = TxnOffsetCommitResponse()
    portions = yield from _sorted(broker, request, response)
    if not portions[0].offsets:
        return response
    client = of_committer(context.version)
    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        verification = _verification(broker, request, client)
    except ApiError as error:
        return _refused(portions, error.code, context, response)
    producer = TransactionalProducer(request.producer_id, request.producer_epoch, verification.guard)
    if verification.is_open:
        return _commit_when_verified(broker, request, context, response, portions, producer)
    return (yield from _commit(broker, request, context, response, portions, producer))


def _verification(
    broker: TransactionalOffsets, request: TxnOffsetCommitRequest, client: Abilities
) -> Verification:
    partition = broker.groups.partition(request.group_id)
    return broker.verification.begin(
        partition, request.producer_id, request.producer_epoch, NO_SEQUENCE, client
    )


def _sorted(
    broker: TransactionalOffsets, request: TxnOffsetCommitRequest, response: TxnOffsetCommitResponse
) -> Steps[list[Portion]]:
    """What is for the coordinator. What does not exist is refused, and comes first within its topic."""
    portions = [Portion()]
    for topic in request.topics:
        image = broker.image.topics.get(topic.name)
        refused, good = [], []
        for number, each in enumerate(topic.partitions):
            if not number % _PAUSE_AFTER:
                yield
            answer = TxnOffsetCommitResponsePartition(partition_index=each.partition_index)
            if image is None or not 0 <= each.partition_index < len(image.partitions):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                refused.append(answer)
                continue
            good.append(answer)
            offset = NewOffset(
                topic.name,
                image.id,
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata or "",
            )
            add(portions, offset, answer)
        response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=refused + good))
    return portions


async def _commit_when_verified(
    broker: TransactionalOffsets,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    response: TxnOffsetCommitResponse,
    portions: Sequence[Portion],
    producer: TransactionalProducer,
) -> _Answer:
    place = OFFSETS_TOPIC, broker.groups.partition_of(request.group_id)
    client = of_committer(context.version)
    for _ in range(MOST_VERIFICATIONS):
        errors = await broker.verification.errors(
            request.transactional_id, request.producer_id, request.producer_epoch, [place], client
        )
        if place in errors:
            return _refused(portions, errors[place], context, response)
        if not client.adds:
            break  # the marker may be that of these offsets; the log refuses them then
        try:
            renewed = _verification(broker, request, client)
        except ApiError as error:
            return _refused(portions, error.code, context, response)
        if renewed.guard is producer.verification:
            break
        producer = producer._replace(verification=renewed.guard)  # a marker came meanwhile
        if not renewed.is_open:
            break
    else:  # the last guard is not verified: nothing may be written with it
        return _refused(portions, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, context, response)
    steps = _commit(broker, request, context, response, portions, producer)
    return await broker.in_slices(steps, context)


def _commit(
    broker: TransactionalOffsets,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    response: TxnOffsetCommitResponse,
    portions: Sequence[Portion],
    producer: TransactionalProducer,
) -> Steps[_Answer]:
    commands = (
        portion.command(
            OffsetCommit(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                offsets=portion.offsets,
                version=context.version,
                transactional=True,
            ),
            producer,
        )
        for portion in portions
    )
    return (yield from run_all(broker.groups, commands, lambda _: _known_to(context, response)))


def _refused(
    portions: Sequence[Portion], code: ErrorCode, context: RequestContext, response: TxnOffsetCommitResponse
) -> TxnOffsetCommitResponse:
    if code is ErrorCode.NETWORK_EXCEPTION:
        # The other coordinator was not reached. Clients try this again without looking for this one.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for portion in portions:
        portion.refuse(code)
    return _known_to(context, response)


def _known_to(context: RequestContext, response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    """The response with errors that clients of this version know."""
    if context.version < _LOADING_SINCE:
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    each.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return response
