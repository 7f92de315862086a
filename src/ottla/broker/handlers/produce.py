"""Produce (0): batches go to the log, and the answer waits for as many replicas as the producer asked for.

acks=0 gets no answer at all; where something is wrong the connection is closed, which is all the protocol
offers to tell it. acks=1 is answered when the leader has the records, acks=-1 when every in-sync replica has
them, which is when the high watermark has passed them in the leader epoch in which they were appended. A
leader that is deposed meanwhile answers NOT_LEADER_OR_FOLLOWER at once, one that is left with too few
replicas in sync NOT_ENOUGH_REPLICAS_AFTER_APPEND. Version 13 names topics by id.

A request brings exactly one batch for a partition. What the request itself may not contain is refused here,
with no log start in the answer; what the log does not take is refused by the log, and then the answer says
where it starts, by which a producer knows whether its earlier batches were deleted meanwhile. A partition
that is named more than once in a request gets none of its batches and is answered once, with INVALID_REQUEST.
(Kafka appends the last one, answers for that, and drops the others in silence.)

A request for many partitions that takes long is finished in slices by the request scheduler. A batch that has
to be opened and is large is opened beside the event loop (`Inspections`). One whose write takes long, because
it is large or its disk is slow, is written beside it (`Partition.append_in_thread`). All of them keep the
frame of the request until they are done with its records, and nothing overtakes them: their connection reads
no further request meanwhile. Where too much waits to be opened the batch is refused with REQUEST_TIMED_OUT,
which every producer retries. A batch that still waits when its client has gone is dropped, unless acks=0.

The first batch of a transaction in a partition is written when the coordinator of the transaction has said
that the partition is part of it (`TransactionVerification`); one question for all partitions of a request.
From version 12 on the same question adds the partition to the transaction (KIP-890).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable
from functools import partial
from typing import Any

from ottla.broker.connection import Refused
from ottla.broker.dispatch import RequestContext
from ottla.broker.late_produce import TOO_MUCH_WAITS, Late, abandoned, append_late, begin_verification
from ottla.broker.portions import in_portions
from ottla.broker.produce_transaction import (
    has_several_producers,
    names_several_producers,
    refused_for_several_producers,
)
from ottla.broker.producing import (
    ALL,
    IDS_SINCE,
    RecordWriting,
    Unacknowledged,
    appended,
    fail,
    leader,
    one_batch,
    refusal,
)
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.storage.validation import OpenElsewhere

logger = logging.getLogger("ottla.produce")

_FEW = 16
"""Partitions of a request that are written to without looking at the clock."""
_AT_ONCE = 0.01
"""Seconds that a request for many partitions may keep the loop before it is finished in slices."""
_PAUSE_AFTER = 8
"""Partitions that are written to between two looks at the clock."""
_SORTED_AT_ONCE = 2_000
_SETTLED_AT_ONCE = 500
_REPEATED = "the partition is named more than once in the request"
_Named = tuple[TopicProduceData, dict[int, PartitionProduceData], set[int]]
"""A topic, an entry for each of its partitions in a request, and the partitions that had more than one."""


_Answer = ProduceResponse | Completion[ProduceResponse] | None
_Outcome = _Answer | Coroutine[Any, Any, _Answer]


def produce(
    broker: RecordWriting, request: ProduceRequest, context: RequestContext
) -> _Outcome | Generator[Any, None, _Outcome]:
    if _is_short(request.topic_data) and (
        request.transactional_id is None or not names_several_producers(request.topic_data)
    ):
        return _produce_few(broker, request, context)
    steps = _produce_many(broker, request, context)
    now, end = broker.watchdog.now, context.connection.last_active + _AT_ONCE
    try:
        while True:
            next(steps)
            if now() > end:
                break
    except StopIteration as finished:
        outcome: _Outcome = finished.value
        return outcome
    context.keep_frame()
    return steps


def _is_short(topics: list[TopicProduceData]) -> bool:
    """Whether there are few partitions, and none of them twice."""
    entries = 0
    for topic in topics:
        count = len(topic.partition_data)
        entries += count
        if count > 1 and (entries > _FEW or len({data.index for data in topic.partition_data}) < count):
            return False
    if len(topics) == 1:
        return True
    return entries <= _FEW and len({topic.name or topic.topic_id for topic in topics}) == len(topics)


def _produce_few(broker: RecordWriting, request: ProduceRequest, context: RequestContext) -> _Outcome:
    """For most requests."""
    version = context.version
    waiting: list[Unacknowledged] = []
    late: list[Late] = []
    topics = []
    for topic in request.topic_data:
        if not topic.partition_data:
            continue
        name = topic.name if version < IDS_SINCE else _name_of(broker, topic.topic_id)
        answers = [
            _append(broker, name, data, request, context, waiting, late) for data in topic.partition_data
        ]
        topics.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    response = ProduceResponse(responses=topics)
    if late:
        return _answer_late(broker, request, context, response, waiting, late)
    return _answer(broker, request, context, response, waiting)


def _produce_many(broker: RecordWriting, request: ProduceRequest, context: RequestContext) -> Steps[_Outcome]:
    """As `_produce_few`, with pauses, and with refusals for partitions that are named more than once."""
    acks, version = request.acks, context.version
    if request.transactional_id is not None and (yield from has_several_producers(broker, request, version)):
        refused = yield from refused_for_several_producers(request)
        return _answer(broker, request, context, refused, [])
    waiting: list[Unacknowledged] = []
    fresh: list[Unacknowledged] = []
    late: list[Late] = []
    topics = []
    entries = 0
    for topic, partitions, repeated in (yield from _by_topic(request.topic_data)):
        name = topic.name if version < IDS_SINCE else _name_of(broker, topic.topic_id)
        answers: list[PartitionProduceResponse] = []
        for some in in_portions(list(partitions.values()), _PAUSE_AFTER):
            answers += [
                _append(broker, name, data, request, context, fresh, late)
                if data.index not in repeated
                else refusal(data.index, ApiError(ErrorCode.INVALID_REQUEST, _REPEATED), -1)
                for data in some
            ]
            entries += len(some)
            if entries >= _PAUSE_AFTER:
                entries = 0
                if acks and len(fresh) >= _SETTLED_AT_ONCE:
                    waiting += [w for w in fresh if not _settled(w, acks)]
                    fresh.clear()
                yield
                if version >= IDS_SINCE:
                    name = _name_of(broker, topic.topic_id)  # the topic may have been deleted meanwhile
        topics.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    waiting += fresh
    response = ProduceResponse(responses=topics)
    if late:
        return _answer_late(broker, request, context, response, waiting, late)
    return _answer(broker, request, context, response, waiting)


def _by_topic(topics: list[TopicProduceData]) -> Steps[Iterable[_Named]]:
    """Each topic once, with its partitions. One without partitions is left out."""
    found: dict[str | bytes, _Named] = {}
    entries = 0
    for topic in topics:
        if not topic.partition_data:
            continue
        _, known, repeated = found.setdefault(topic.name or topic.topic_id, (topic, {}, set()))
        for some in in_portions(topic.partition_data, _SORTED_AT_ONCE):
            new = {data.index: data for data in some}
            repeated |= known.keys() & new.keys()
            if len(new) < len(some):
                repeated.update(index for index, times in Counter(d.index for d in some).items() if times > 1)
            known.update(new)
            entries += len(some)
            if entries >= _SORTED_AT_ONCE:
                entries = 0
                yield
    return found.values()


def _name_of(broker: RecordWriting, topic_id: bytes) -> str | None:
    """The name of the topic with this id, unless its partitions here are gone or belong to a newer topic.

    That can be so before the image says it.
    """
    name = broker.topic_name(topic_id)
    return name if name is not None and broker.replicas.topic_id(name) == topic_id else None


def _answer(
    broker: RecordWriting,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    waiting: list[Unacknowledged],
) -> _Answer:
    """The answer, once every batch has been appended or refused: nothing needs the records any more."""
    context.release_frame()
    acks = request.acks
    if acks == 0:
        _close_on_error(response)
        return None
    waiting = [w for w in waiting if not _settled(w, acks)]
    if not waiting:
        return response
    return _wait(broker, request.timeout_ms, acks, waiting, response)


async def _answer_late(
    broker: RecordWriting,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    waiting: list[Unacknowledged],
    late: list[Late],
) -> _Answer:
    if not await append_late(broker, request, context, response, waiting, late):
        return None
    return _answer(broker, request, context, response, waiting)


def _append(
    broker: RecordWriting,
    topic: str | None,
    data: PartitionProduceData,
    request: ProduceRequest,
    context: RequestContext,
    waiting: list[Unacknowledged],
    late: list[Late],
) -> PartitionProduceResponse:
    """Append one batch now, unless it takes long to open or to write: then it goes to `late`."""
    log_start = -1
    held = verification = asks_for = None
    try:
        partition = leader(broker, topic, data.index, request.acks)
        records = one_batch(data.records, request.transactional_id, context.header.api_version)
        log_start = partition.log_start_offset
        broker.space.admit(len(records))
        if request.transactional_id is not None:
            verification, asks_for = begin_verification(broker, partition, records, context)
        if asks_for is None and not partition.writes_in_thread(len(records)):
            info = partition.append(records, only_small=True, verification=verification)
            return appended(partition, info, waiting)
    except ApiError as error:
        return refusal(data.index, error, log_start)
    except OpenElsewhere:
        held = broker.inspections.admit(records, context.address, partial(abandoned, request.acks, context))
        if held is None:
            return refusal(data.index, ApiError(ErrorCode.REQUEST_TIMED_OUT, TOO_MUCH_WAITS), log_start)
    context.keep_frame()
    place = PartitionProduceResponse(index=data.index)
    late.append(
        Late(
            partition.topic,
            partition.topic_id,
            data.index,
            records,
            held,
            place,
            verification,
            asks_for,
        )
    )
    return place


def _settled(waiting: Unacknowledged, acks: int) -> bool:
    """True when this partition's answer is final: acknowledged, or failed meanwhile."""
    partition, leader_epoch, end_offset, answer = waiting
    try:
        return partition.acknowledged(end_offset, acks == ALL, leader_epoch)
    except ApiError as error:
        fail(answer, error)
        return True


def _wait(
    broker: RecordWriting,
    timeout_ms: int,
    acks: int,
    waiting: list[Unacknowledged],
    response: ProduceResponse,
) -> Completion[ProduceResponse]:
    def ready() -> bool:
        waiting[:] = [w for w in waiting if not _settled(w, acks)]
        return not waiting

    def answer(expired: bool) -> ProduceResponse:
        for *_, answer in waiting:
            fail(answer, ApiError(ErrorCode.REQUEST_TIMED_OUT))
        return response

    return broker.purgatory.enter([w[0] for w in waiting], ready, max(timeout_ms, 0) / 1000).map(answer)


def _close_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                name = shown(topic.name or topic.topic_id.hex())
                raise Refused(
                    f"produce with acks=0 to {name}-{partition.index} failed: "
                    f"{error_of(partition.error_code).name} {partition.error_message}"
                )
