"""Batches of a Produce request that are not appended at once.

One has to be opened and is large, or its disk is slow, or it is the first of a transaction in its partition:
then the coordinator of the transaction is asked first (`TransactionVerification`), once for all partitions of
the request. They are appended one after the other, and their answers put in their places in the response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ottla.broker.dispatch import RequestContext
from ottla.broker.inspections import ClientGone, HeldBatch
from ottla.broker.producing import (
    IDS_SINCE,
    RecordWriting,
    Unacknowledged,
    appended,
    leader,
    refusal,
)
from ottla.broker.transaction_verification import MOST_VERIFICATIONS, Place, of_producer
from ottla.protocol.batches import read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from ottla.replication.partition import Partition
from ottla.storage.log_config import LogConfig
from ottla.storage.validation import OpenElsewhere
from ottla.storage.verification import VerificationGuard

Producer = tuple[int, int]
"""The id and epoch of a producer."""
TOO_MUCH_WAITS = "too many batches wait to be opened; try again later"
_FOR_COORDINATORS = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors that pass, but that older producers do not expect here."""
_RETRIED = ErrorCode.NOT_ENOUGH_REPLICAS
"""What they get instead: every producer sends the batch again, to the same leader."""


@dataclass(slots=True)
class Late:
    """A batch that is not appended at once, and what stands in the response for now."""

    topic: str
    topic_id: bytes
    index: int
    records: memoryview
    held: HeldBatch | None
    """It waits to be opened."""
    answer: PartitionProduceResponse
    verification: VerificationGuard | None = None
    """What the log wants to see with a batch of a transaction."""
    asks_for: Producer | None = None
    """The coordinator of the transaction of this producer has to be asked first."""


def begin_verification(
    broker: RecordWriting, partition: Partition, records: memoryview, context: RequestContext
) -> tuple[VerificationGuard | None, Producer | None]:
    """What the log wants to see with the batch, and the producer if its coordinator has to be asked."""
    header = read_header(records)
    if not header.is_transactional:
        return None, None
    producer = header.producer_id, header.producer_epoch
    client = of_producer(context.version)
    verification = broker.verification.begin(partition, *producer, header.base_sequence, client)
    return verification.guard, producer if verification.is_open else None


def abandoned(acks: int, context: RequestContext) -> bool:
    """Whether the client has gone; with acks=0 it may, and the batch counts."""
    return acks != 0 and context.connection.client_gone


async def append_late(
    broker: RecordWriting,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    waiting: list[Unacknowledged],
    late: list[Late],
) -> bool:
    """Append what was postponed, one batch after the other, and put the answers in their places.

    False when the client has gone meanwhile, so that nobody waits for an answer.
    """
    answers: dict[int, PartitionProduceResponse] = {}
    left = deque(late)
    try:
        refused = await _refused_by_coordinator(broker, request, context, late)
        for _ in range(MOST_VERIFICATIONS):
            again = [
                one
                for one in late
                if (one.topic, one.index) not in refused and _is_to_be_verified_again(broker, context, one)
            ]
            if not again:
                break
            refused.update(await _refused_by_coordinator(broker, request, context, again))
        while left:
            one = left[0]
            error = refused.get((one.topic, one.index))
            answers[id(one.answer)] = (
                await _append_one_late(broker, request, context, waiting, one)
                if error is None
                else refusal(one.index, error, -1)
            )
            _let_go(broker, left.popleft())
    except ClientGone:
        return False
    finally:
        for one in left:
            _let_go(broker, one)
        context.release_frame()
    for topic in response.responses:
        topic.partition_responses = [answers.get(id(place), place) for place in topic.partition_responses]
    return True


def _is_to_be_verified_again(broker: RecordWriting, context: RequestContext, one: Late) -> bool:
    """Whether the answer of the coordinator says nothing any more, since a marker came meanwhile.

    With replicas and markers of several leaders that is usual: the marker of the transaction before. Where
    transactions share an epoch, it may as well be that of the batch itself, which is late then and must not
    become a part of the next one. Such clients wait for the markers before they write.
    """
    if one.asks_for is None or not of_producer(context.version).adds:
        return False
    try:
        partition = broker.replicas.leader(one.topic, one.index)
        guard, one.asks_for = begin_verification(broker, partition, one.records, context)
    except ApiError:
        return False  # the append is refused for the same reason
    is_another = guard is not one.verification
    one.verification = guard
    return is_another and one.asks_for is not None


async def _refused_by_coordinator(
    broker: RecordWriting, request: ProduceRequest, context: RequestContext, late: Iterable[Late]
) -> dict[Place, ApiError]:
    """The partitions that may not be written to in the transaction of the request, and why."""
    asked: dict[Producer, list[Place]] = {}
    for one in late:
        if one.asks_for is not None:
            asked.setdefault(one.asks_for, []).append((one.topic, one.index))
    refused: dict[Place, ApiError] = {}
    for producer, places in asked.items():  # more than one only if the client is at fault
        codes = await broker.verification.errors(
            request.transactional_id or "", *producer, places, of_producer(context.version)
        )
        for place, code in codes.items():
            text = f"the partition is not part of a transaction of {request.transactional_id}: {code.name}"
            refused[place] = ApiError(_RETRIED if code in _FOR_COORDINATORS else code, text)
    return refused


def _let_go(broker: RecordWriting, one: Late) -> None:
    if one.held is not None:
        broker.inspections.release(one.held)


async def _append_one_late(
    broker: RecordWriting,
    request: ProduceRequest,
    context: RequestContext,
    waiting: list[Unacknowledged],
    one: Late,
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
        if prepared_under is None and abandoned(request.acks, context):
            raise ClientGone
        if broker.replicas.topic_id(one.topic) != one.topic_id:
            by_id = context.version >= IDS_SINCE
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return leader(broker, one.topic, one.index, request.acks)

    while True:
        try:
            partition = check()
            log_start = partition.log_start_offset
            if partition.writes_in_thread(len(records)):
                info = await partition.append_in_thread(
                    records, check, prepared_under=prepared_under, verification=one.verification
                )
            else:
                info = partition.append(
                    records, prepared_under=prepared_under, only_small=True, verification=one.verification
                )
            return appended(partition, info, waiting)
        except OpenElsewhere:
            held = one.held = one.held or broker.inspections.admit(
                records, context.address, partial(abandoned, request.acks, context)
            )
            if held is None:
                return refusal(one.index, ApiError(ErrorCode.REQUEST_TIMED_OUT, TOO_MUCH_WAITS), log_start)
            prepared_under = partition.config
        except ApiError as error:
            return refusal(one.index, error, log_start)
        try:
            records = await broker.inspections.prepare(
                held, prepared_under, broker.clock.now_ms(), f"{one.topic}-{one.index}"
            )
        except ApiError as error:
            return refusal(one.index, error, log_start)
