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
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Coroutine, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ottla.broker.connection import Refused
from ottla.broker.dispatch import RequestContext
from ottla.broker.inspections import ClientGone, HeldBatch, Inspections
from ottla.broker.portions import in_portions
from ottla.broker.ports import PartitionAccess, Time, TopicNames, WaitingForOffsets
from ottla.broker.request_scheduler import Steps
from ottla.broker.space import Space
from ottla.broker.watchdog import Watchdog
from ottla.cluster.topic_rules import INTERNAL_TOPICS
from ottla.completion import Completion
from ottla.printable import shown
from ottla.protocol.batches import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    batch_follows,
    read_outline,
)
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.replication.partition import Partition
from ottla.storage.log_config import LogConfig
from ottla.storage.results import AppendInfo
from ottla.storage.validation import InvalidRecordsError, OpenElsewhere

logger = logging.getLogger("ottla.produce")

_ALL = -1
_FEW = 16
"""Partitions of a request that are written to without looking at the clock."""
_AT_ONCE = 0.01
"""Seconds that a request for many partitions may keep the loop before it is finished in slices."""
_PAUSE_AFTER = 8
"""Partitions that are written to between two looks at the clock."""
_SORTED_AT_ONCE = 2_000
_SETTLED_AT_ONCE = 500
_ZSTD_SINCE = 7
_IDS_SINCE = 13
"""From this version on topics are named by id."""
_TOO_MUCH_WAITS = "too many batches wait to be opened; try again later"
_WITHOUT_LOG_START = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_REPEATED = "the partition is named more than once in the request"
_Named = tuple[TopicProduceData, dict[int, PartitionProduceData], set[int]]
"""A topic, an entry for each of its partitions in a request, and the partitions that had more than one."""
_Unacknowledged = tuple[Partition, int, int, PartitionProduceResponse]
"""A partition, the leader epoch of the append, the offset behind it, and the answer."""


class RecordWriting(PartitionAccess, Time, TopicNames, WaitingForOffsets, Protocol):
    @property
    def inspections(self) -> Inspections: ...
    @property
    def space(self) -> Space: ...
    @property
    def watchdog(self) -> Watchdog: ...


@dataclass(slots=True)
class _Late:
    """A batch that is not appended at once, and what stands in the response for now."""

    topic: str
    topic_id: bytes
    index: int
    records: memoryview
    held: HeldBatch | None
    """It waits to be opened."""
    answer: PartitionProduceResponse


_Answer = ProduceResponse | Completion[ProduceResponse] | None
_Outcome = _Answer | Coroutine[Any, Any, _Answer]


def produce(
    broker: RecordWriting, request: ProduceRequest, context: RequestContext
) -> _Outcome | Generator[Any, None, _Outcome]:
    if _is_short(request.topic_data):
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
    waiting: list[_Unacknowledged] = []
    late: list[_Late] = []
    topics = []
    for topic in request.topic_data:
        if not topic.partition_data:
            continue
        name = topic.name if version < _IDS_SINCE else _name_of(broker, topic.topic_id)
        answers = [
            _append(broker, name, data, request, context, waiting, late) for data in topic.partition_data
        ]
        topics.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    response = ProduceResponse(responses=topics)
    if late:
        return _append_late(broker, request, context, response, waiting, late)
    return _answer(broker, request, context, response, waiting)


def _produce_many(broker: RecordWriting, request: ProduceRequest, context: RequestContext) -> Steps[_Outcome]:
    """As `_produce_few`, with pauses, and with refusals for partitions that are named more than once."""
    acks, version = request.acks, context.version
    waiting: list[_Unacknowledged] = []
    fresh: list[_Unacknowledged] = []
    late: list[_Late] = []
    topics = []
    entries = 0
    for topic, partitions, repeated in (yield from _by_topic(request.topic_data)):
        name = topic.name if version < _IDS_SINCE else _name_of(broker, topic.topic_id)
        answers: list[PartitionProduceResponse] = []
        for some in in_portions(list(partitions.values()), _PAUSE_AFTER):
            answers += [
                _append(broker, name, data, request, context, fresh, late)
                if data.index not in repeated
                else _refusal(data.index, ApiError(ErrorCode.INVALID_REQUEST, _REPEATED), -1)
                for data in some
            ]
            entries += len(some)
            if entries >= _PAUSE_AFTER:
                entries = 0
                if acks and len(fresh) >= _SETTLED_AT_ONCE:
                    waiting += [w for w in fresh if not _settled(w, acks)]
                    fresh.clear()
                yield
                if version >= _IDS_SINCE:
                    name = _name_of(broker, topic.topic_id)  # the topic may have been deleted meanwhile
        topics.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    waiting += fresh
    response = ProduceResponse(responses=topics)
    if late:
        return _append_late(broker, request, context, response, waiting, late)
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
    waiting: list[_Unacknowledged],
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


def _append(
    broker: RecordWriting,
    topic: str | None,
    data: PartitionProduceData,
    request: ProduceRequest,
    context: RequestContext,
    waiting: list[_Unacknowledged],
    late: list[_Late],
) -> PartitionProduceResponse:
    """Append one batch now, unless it takes long to open or to write: then it goes to `late`."""
    log_start = -1
    held = None
    try:
        partition = _leader(broker, topic, data.index, request.acks)
        records = _one_batch(data.records, request.transactional_id, context.header.api_version)
        log_start = partition.log_start_offset
        broker.space.admit(len(records))
        if not partition.writes_in_thread(len(records)):
            info = partition.append(records, only_small=True)
            return _appended(partition, info, waiting)
    except ApiError as error:
        return _refusal(data.index, error, log_start)
    except OpenElsewhere:
        held = broker.inspections.admit(records, context.address, partial(_abandoned, request.acks, context))
        if held is None:
            return _refusal(data.index, ApiError(ErrorCode.REQUEST_TIMED_OUT, _TOO_MUCH_WAITS), log_start)
    context.keep_frame()
    place = PartitionProduceResponse(index=data.index)
    late.append(_Late(partition.topic, partition.topic_id, data.index, records, held, place))
    return place


def _leader(broker: RecordWriting, topic: str | None, index: int, acks: int) -> Partition:
    """The partition, if a producer may write to it here and now."""
    if not -1 <= acks <= 1:
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = broker.replicas.leader(topic, index)
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
    if acks == _ALL:
        partition.check_in_sync()
    return partition


def _appended(
    partition: Partition, info: AppendInfo, waiting: list[_Unacknowledged]
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=partition.index,
        base_offset=info.first_offset,
        log_append_time_ms=info.append_time_ms,
        log_start_offset=info.log_start_offset,
    )
    waiting.append((partition, partition.leader_epoch, info.last_offset + 1, answer))
    return answer


def _abandoned(acks: int, context: RequestContext) -> bool:
    """Whether the client has gone; with acks=0 it may, and the batch counts."""
    return acks != 0 and context.connection.client_gone


async def _append_late(
    broker: RecordWriting,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    waiting: list[_Unacknowledged],
    late: list[_Late],
) -> _Answer:
    """Append what was postponed, one batch after the other, and put the answers in their places."""
    answers: dict[int, PartitionProduceResponse] = {}
    left = deque(late)
    try:
        while left:
            one = left[0]
            answers[id(one.answer)] = await _append_one_late(broker, request, context, waiting, one)
            _let_go(broker, left.popleft())
    except ClientGone:
        return None
    finally:
        for one in left:
            _let_go(broker, one)
        context.release_frame()
    for topic in response.responses:
        topic.partition_responses = [answers.get(id(place), place) for place in topic.partition_responses]
    return _answer(broker, request, context, response, waiting)


def _let_go(broker: RecordWriting, one: _Late) -> None:
    if one.held is not None:
        broker.inspections.release(one.held)


async def _append_one_late(
    broker: RecordWriting,
    request: ProduceRequest,
    context: RequestContext,
    waiting: list[_Unacknowledged],
    one: _Late,
) -> PartitionProduceResponse:
    """Append the batch. Where it has to be opened, a thread opens it; where the disk is slow, one writes it.

    All checks are made again before the write: what was true before need not be true any more. A topic that
    was deleted meanwhile and made again under the same name does not get the batch. ClientGone when the batch
    was dropped instead, which happens only before it was opened.
    """
    records = one.records
    prepared_under: LogConfig | None = None
    log_start = -1

    def check() -> Partition:
        if prepared_under is None and _abandoned(request.acks, context):
            raise ClientGone
        if broker.replicas.topic_id(one.topic) != one.topic_id:
            by_id = context.version >= _IDS_SINCE
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _leader(broker, one.topic, one.index, request.acks)

    while True:
        try:
            partition = check()
            log_start = partition.log_start_offset
            if partition.writes_in_thread(len(records)):
                info = await partition.append_in_thread(records, check, prepared_under=prepared_under)
            else:
                info = partition.append(records, prepared_under=prepared_under, only_small=True)
            return _appended(partition, info, waiting)
        except OpenElsewhere:
            held = one.held = one.held or broker.inspections.admit(
                records, context.address, partial(_abandoned, request.acks, context)
            )
            if held is None:
                return _refusal(one.index, ApiError(ErrorCode.REQUEST_TIMED_OUT, _TOO_MUCH_WAITS), log_start)
            prepared_under = partition.config
        except ApiError as error:
            return _refusal(one.index, error, log_start)
        try:
            records = await broker.inspections.prepare(
                held, prepared_under, broker.clock.now_ms(), f"{one.topic}-{one.index}"
            )
        except ApiError as error:
            return _refusal(one.index, error, log_start)


def _one_batch(records: memoryview | None, transactional_id: str | None, version: int) -> memoryview:
    """The records, if they are what a request of this version may bring: one batch, and a good one."""
    size = 0 if records is None else len(records)
    if records is None or size < HEADER_SIZE:
        raise ApiError(ErrorCode.INVALID_RECORD, "the records hold no whole batch")
    length, magic, attributes = read_outline(records)
    end = length + LENGTH_OVERHEAD
    if end > size:
        raise ApiError(ErrorCode.INVALID_RECORD, "the records hold no whole batch")
    if magic != MAGIC:
        known = magic in (0, 1)
        raise ApiError(
            ErrorCode.INVALID_RECORD if known else ErrorCode.CORRUPT_MESSAGE,
            f"record format {magic} is not supported, only {MAGIC} is",
        )
    if attributes & COMPRESSION_MASK == Codec.ZSTD and version < _ZSTD_SINCE:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {_ZSTD_SINCE} of Produce")
    if attributes & TRANSACTIONAL:
        if transactional_id is None:
            raise ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch in a request without a transactional id",
            )
        raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{transactional_id} has no transaction here")
    if HEADER_SIZE <= end < size and batch_follows(records, end):  # what is cut off is left out by the log
        raise ApiError(
            ErrorCode.INVALID_RECORD, "a produce request brings one batch for a partition, not more"
        )
    return records


def _refusal(index: int, error: ApiError, log_start: int) -> PartitionProduceResponse:
    refused = error.record_errors if isinstance(error, InvalidRecordsError) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1 if error.code in _WITHOUT_LOG_START else log_start,
        record_errors=[
            BatchIndexAndErrorMessage(
                batch_index=record.batch_index, batch_index_error_message=record.message
            )
            for record in refused
        ],
        error_message=error.message,
    )


def _fail(answer: PartitionProduceResponse, error: ApiError) -> None:
    answer.error_code = error.code
    answer.error_message = error.message
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _settled(waiting: _Unacknowledged, acks: int) -> bool:
    """True when this partition's answer is final: acknowledged, or failed meanwhile."""
    partition, leader_epoch, end_offset, answer = waiting
    try:
        return partition.acknowledged(end_offset, acks == _ALL, leader_epoch)
    except ApiError as error:
        _fail(answer, error)
        return True


def _wait(
    broker: RecordWriting,
    timeout_ms: int,
    acks: int,
    waiting: list[_Unacknowledged],
    response: ProduceResponse,
) -> Completion[ProduceResponse]:
    def ready() -> bool:
        waiting[:] = [w for w in waiting if not _settled(w, acks)]
        return not waiting

    def answer(expired: bool) -> ProduceResponse:
        for *_, answer in waiting:
            _fail(answer, ApiError(ErrorCode.REQUEST_TIMED_OUT))
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
