"""Writes the markers that end transactions, to the partitions that this broker leads.

A transaction's coordinator asks for it, in this broker or by WriteTxnMarkers from another one; so does a tool
that aborts a transaction which its coordinator has lost. Partitions of `__consumer_offsets` are written by
the group coordinator, which lets the offsets of the transaction count, or drops them.

Each partition has its own outcome, which is known when the marker is committed. Markers of one producer are
answered together, however many entries it has. A marker takes little space and lets readers go on, so it is
also written to a disk that is nearly full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ottla.broker.group_requests import collected
from ottla.broker.ports import GroupAccess, PartitionAccess, WaitingForOffsets
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion, run_coroutine
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.partition import Partition

_TIMEOUT_SECONDS = 30.0
"""So long the replicas may take to get a marker. The coordinator asks again after that."""
_PAUSE_AFTER = 20

_NOT_COORDINATED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_Result = WritableTxnMarkerPartitionResult
_Outcome = tuple[Completion[Any], Callable[[ApiError], Any]]


class MarkerWriting(GroupAccess, PartitionAccess, WaitingForOffsets, Protocol):
    """Markers go to logs, and through the group coordinator to its own."""


class _Unsettled(NamedTuple):
    partition: Partition
    leader_epoch: int
    end_offset: int
    result: _Result


def write_markers(
    broker: MarkerWriting, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Completion[WriteTxnMarkersResponse]:
    """Write all markers now."""
    steps = marker_steps(broker, request)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            outcome: WriteTxnMarkersResponse | Completion[WriteTxnMarkersResponse] = finished.value
            return outcome


def marker_steps(
    broker: MarkerWriting, request: WriteTxnMarkersRequest
) -> Steps[WriteTxnMarkersResponse | Completion[WriteTxnMarkersResponse]]:
    """Write all markers, with pauses."""
    producers: dict[int, dict[str, dict[int, _Result]]] = {}
    outcomes: list[_Outcome] = []
    written: list[_Unsettled] = []
    number = 0
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                result = _Result(partition_index=index)
                topics = producers.setdefault(marker.producer_id, {})
                topics.setdefault(topic.name, {})[index] = result
                outcome = _write(broker, marker, topic.name, index, result, written)
                if outcome is not None:
                    outcomes.append((outcome, _into(result)))
                number += 1
                if not number % _PAUSE_AFTER:
                    yield
    unsettled = [each for each in written if not _is_settled(each)]
    if unsettled:
        outcomes.append((_committed(broker, unsettled), _never))
    return (yield from collected(outcomes, lambda _: _response(producers)))


def _write(
    broker: MarkerWriting,
    marker: WritableTxnMarker,
    topic: str,
    index: int,
    result: _Result,
    written: list[_Unsettled],
) -> Completion[Any] | None:
    """Write one marker. Where its outcome is not known by `written` it is what is returned."""
    try:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST)  # nobody has such a transaction
        partition = broker.replicas.leader(topic, index)
        if topic == OFFSETS_TOPIC:
            return broker.groups.end_transaction(
                index,
                marker.producer_id,
                marker.producer_epoch,
                committed=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        if partition.turn.locked():
            return run_coroutine(_write_in_turn(broker, marker, topic, index, result))
        written.append(_append(partition, marker, result))
    except ApiError as error:
        result.error_code = error.code
    return None


def _append(partition: Partition, marker: WritableTxnMarker, result: _Result) -> _Unsettled:
    partition.check_in_sync()
    info = partition.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    return _Unsettled(partition, partition.leader_epoch, info.last_offset + 1, result)


async def _write_in_turn(
    broker: MarkerWriting, marker: WritableTxnMarker, topic: str, index: int, result: _Result
) -> Completion[Any] | None:
    """The same behind what threads write to the log now."""
    partition = broker.replicas.leader(topic, index)
    async with partition.turn:
        unsettled = _append(broker.replicas.leader(topic, index), marker, result)
    return None if _is_settled(unsettled) else _committed(broker, [unsettled])


def _is_settled(each: _Unsettled) -> bool:
    """Whether the outcome is known: the marker is committed, or will not be in this leader epoch."""
    try:
        return each.partition.acknowledged(each.end_offset, True, each.leader_epoch)
    except ApiError as error:
        each.result.error_code = error.code
        return True


def _committed(broker: MarkerWriting, waiting: list[_Unsettled]) -> Completion[Any]:
    """The results hold the outcomes when it is resolved."""

    def ready() -> bool:
        waiting[:] = [each for each in waiting if not _is_settled(each)]
        return not waiting

    def done(expired: bool) -> None:
        for each in waiting:
            each.result.error_code = ErrorCode.REQUEST_TIMED_OUT

    return broker.purgatory.enter([each.partition for each in waiting], ready, _TIMEOUT_SECONDS).map(done)


def _into(result: _Result) -> Callable[[ApiError], None]:
    """Puts an error in its place: a coordinator is asked for as the leader of a partition here."""

    def refused(error: ApiError) -> None:
        code = error.code
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_COORDINATED else code

    return refused


def _never(error: ApiError) -> None:
    raise error


def _response(producers: dict[int, dict[str, dict[int, _Result]]]) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(name=name, partitions=list(results.values()))
                    for name, results in topics.items()
                ],
            )
            for producer_id, topics in producers.items()
        ]
    )
