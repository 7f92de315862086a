"""Produce (0): batches go to the log, and the answer waits for as many replicas as the producer asked for.

acks=0 gets no answer at all; where something is wrong the connection is closed, which is all the protocol
offers to tell it. acks=1 is answered when the leader has the records, acks=-1 when every in-sync replica has
them, which is when the high watermark has passed them. Version 13 names topics by id.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.connection import Refused
from ottla.broker.dispatch import RequestContext
from ottla.broker.pending import Pending
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

logger = logging.getLogger("ottla.produce")

_ALL = -1
_Unacknowledged = tuple[Partition, int, PartitionProduceResponse]


def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Pending | None:
    acks = request.acks
    waiting: list[_Unacknowledged] = []
    topics = []
    for topic in request.topic_data:
        name = topic.name if context.version < 13 else broker.topic_name(topic.topic_id)
        topics.append(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _append(broker, name, data, acks, waiting) for data in topic.partition_data
                ],
            )
        )
    response = ProduceResponse(responses=topics)
    if acks == 0:
        _close_on_error(response)
        return None
    waiting = [w for w in waiting if not _settled(w, acks)]
    if not waiting:
        return response
    return _wait(broker, request.timeout_ms, acks, waiting, response)


def _append(
    broker: Broker, topic: str | None, data: PartitionProduceData, acks: int, waiting: list[_Unacknowledged]
) -> PartitionProduceResponse:
    try:
        if not -1 <= acks <= 1:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if data.records is None:
            raise ApiError(ErrorCode.INVALID_RECORD, "the records are null")
        partition = broker.replicas.leader(topic, data.index)
        if acks == _ALL:
            partition.check_in_sync()
        info = partition.append(data.records)
    except ApiError as error:
        return _refusal(data.index, error)
    answer = PartitionProduceResponse(
        index=data.index,
        base_offset=info.first_offset,
        log_append_time_ms=info.append_time_ms,
        log_start_offset=info.log_start_offset,
    )
    waiting.append((partition, info.last_offset + 1, answer))
    return answer


def _refusal(index: int, error: ApiError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        error_message=error.message,
    )


def _fail(answer: PartitionProduceResponse, error: ApiError) -> None:
    answer.error_code = error.code
    answer.error_message = error.message
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _settled(waiting: _Unacknowledged, acks: int) -> bool:
    """True when this partition's answer is final: acknowledged, or failed meanwhile."""
    partition, end_offset, answer = waiting
    try:
        return partition.acknowledged(end_offset, all_replicas=acks == _ALL)
    except ApiError as error:
        _fail(answer, error)
        return True


def _wait(
    broker: Broker, timeout_ms: int, acks: int, waiting: list[_Unacknowledged], response: ProduceResponse
) -> Pending:
    def ready() -> bool:
        waiting[:] = [w for w in waiting if not _settled(w, acks)]
        return not waiting

    def done(expired: bool) -> None:
        for _, _, answer in waiting:
            _fail(answer, ApiError(ErrorCode.REQUEST_TIMED_OUT))
        pending.resolve(response)

    pending = Pending()
    wait = broker.room.enter([w[0] for w in waiting], ready, done, max(timeout_ms, 0) / 1000)
    pending.on_cancel = wait.cancel
    return pending


def _close_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise Refused(
                    f"produce with acks=0 to {topic.name}-{partition.index} failed: "
                    f"{error_of(partition.error_code).name} {partition.error_message}"
                )
