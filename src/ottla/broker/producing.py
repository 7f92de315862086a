"""What the parts of Produce share: which batches a request may bring, who may write, and how answers look."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.inspections import Inspections
from ottla.broker.ports import PartitionAccess, Time, TopicNames, VerificationAccess, WaitingForOffsets
from ottla.broker.space import Space
from ottla.broker.watchdog import Watchdog
from ottla.cluster.topic_rules import INTERNAL_TOPICS
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
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
)
from ottla.replication.partition import Partition
from ottla.storage.results import AppendInfo
from ottla.storage.validation import InvalidRecordsError

ALL = -1
"""acks of a producer that waits for all replicas in sync."""
IDS_SINCE = 13
"""From this version on topics are named by id."""
_ZSTD_SINCE = 7
_WITHOUT_LOG_START = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
Unacknowledged = tuple[Partition, int, int, PartitionProduceResponse]
"""A partition, the leader epoch of the append, the offset behind it, and the answer."""


class RecordWriting(PartitionAccess, Time, TopicNames, VerificationAccess, WaitingForOffsets, Protocol):
    @property
    def inspections(self) -> Inspections: ...
    @property
    def space(self) -> Space: ...
    @property
    def watchdog(self) -> Watchdog: ...


def leader(broker: RecordWriting, topic: str | None, index: int, acks: int) -> Partition:
    """The partition, if a producer may write to it here and now."""
    if not -1 <= acks <= 1:
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = broker.replicas.leader(topic, index)
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
    if acks == ALL:
        partition.check_in_sync()
    return partition


def one_batch(records: memoryview | None, transactional_id: str | None, version: int) -> memoryview:
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
    if attributes & TRANSACTIONAL and transactional_id is None:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch in a request without a transactional id",
        )
    if HEADER_SIZE <= end < size and batch_follows(records, end):  # what is cut off is left out by the log
        raise ApiError(
            ErrorCode.INVALID_RECORD, "a produce request brings one batch for a partition, not more"
        )
    return records


def appended(
    partition: Partition, info: AppendInfo, waiting: list[Unacknowledged]
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=partition.index,
        base_offset=info.first_offset,
        log_append_time_ms=info.append_time_ms,
        log_start_offset=info.log_start_offset,
    )
    waiting.append((partition, partition.leader_epoch, info.last_offset + 1, answer))
    return answer


def refusal(index: int, error: ApiError, log_start: int) -> PartitionProduceResponse:
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


def fail(answer: PartitionProduceResponse, error: ApiError) -> None:
    answer.error_code = error.code
    answer.error_message = error.message
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
