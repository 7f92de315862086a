"""What a follower does to its log: it appends what its leader sent, and cuts off what its leader has not.

Rules kept here:

* Records are written as they came, and only while this replica follows in the epoch they were asked for in.
* A log is cut where its leader epochs part from the leader's (KIP-101, KIP-279), never at the high watermark.
  Only a log that the leader's has left behind altogether begins anew, at the leader's log start.
* The high watermark is learned from an answer that found the logs to agree, after its records are written:
  what is going to be cut may not be taken for committed (KAFKA-14704).
* A thread that writes is waited for. While it writes the log is neither cut nor appended to.

What a leader says is checked. What cannot be true raises ApiError, and the log is as it was.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ottla.protocol.batches import HEADER_SIZE, crc_matches, read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition

logger = logging.getLogger("ottla.replication")


class Position(NamedTuple):
    """What a follower asks for next, and what it tells of its log with that."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """Of the last record it has; -1: none."""
    log_start_offset: int


def position_of(partition: Partition) -> Position | None:
    """Where the follower goes on. None while a flush is due: a leader takes all before for safe here."""
    log = partition.log
    if not partition.counts_all:
        return None
    return Position(partition.leader_epoch, log.end_offset, log.leader_epochs.latest, log.log_start_offset)


async def append_records(partition: Partition, records: memoryview, leader_epoch: int) -> None:
    """Write what the leader sent. Returns when the topic's flush, if it asks for one, has been done."""
    async with partition.turn:
        _check_follows(partition, leader_epoch)
        _begin_with_batch(partition, records)
        for portion in partition.log.check_replicated(records, leader_epoch):
            await partition.append_portion(portion, leader_epoch)
    await partition.flushed()


def _begin_with_batch(partition: Partition, records: memoryview) -> None:
    """Let an empty log begin with the batch that its start offset lies in.

    The log start of the leader lies within a batch after DeleteRecords, and a leader sends whole batches.
    """
    log = partition.log
    if log.log_start_offset < log.end_offset or len(records) < HEADER_SIZE:
        return
    header = read_header(records)
    if not 0 <= header.base_offset < log.end_offset < header.next_offset:
        return
    if header.size <= len(records) and crc_matches(records, 0, header):
        log.truncate_fully(header.base_offset)
        partition.state.truncated(header.base_offset)


async def truncate(partition: Partition, epoch: int, end_offset: int, leader_epoch: int) -> bool:
    """The leader's log has nothing of `epoch` from `end_offset` on, where this one has. Cut it there.

    False when nothing was to be changed: then the leader contradicts itself.
    """
    async with partition.turn:
        _check_follows(partition, leader_epoch)
        log = partition.log
        before = log.end_offset, log.leader_epochs.entries
        _, own_end = log.leader_epochs.end_offset_for(epoch, log.end_offset)
        if own_end < 0 or end_offset < 0:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{log.name}: the leader names epoch {epoch} with the end {end_offset}, and the newest one "
                f"here is {log.leader_epochs.latest}",
            )
        _cut(
            partition, min(own_end, end_offset), f"its leader's records of epoch {epoch} end at {end_offset}"
        )
        return before != (log.end_offset, log.leader_epochs.entries)


async def follow_range(partition: Partition, start: int, end: int, leader_epoch: int) -> bool:
    """The leader has the offsets from `start` to `end` alone, and not the one that was asked for.

    False when it has that one after all.
    """
    async with partition.turn:
        _check_follows(partition, leader_epoch)
        log = partition.log
        if not 0 <= start <= end:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"{log.name}: the leader's log is said to go from {start} to {end}"
            )
        if end < log.end_offset:
            _cut(partition, end, f"its leader's log ends at {end}")
        elif start > log.end_offset:
            logger.warning("%s begins anew at %d, where its leader's log begins", log.name, start)
            log.truncate_fully(start)
            partition.state.truncated(start)
            partition.state.learned(start)
        else:
            return False
        return True


def learn(partition: Partition, high_watermark: int, log_start_offset: int) -> None:
    """Take over where the leader's high watermark and log start are."""
    state, log = partition.state, partition.log
    if high_watermark > state.high_watermark:
        state.learned(high_watermark)
    if log_start_offset > log.log_start_offset:
        log.delete_records_before(min(log_start_offset, state.high_watermark))


def _cut(partition: Partition, offset: int, why: str) -> None:
    log, state = partition.log, partition.state
    if offset < log.end_offset:
        logger.log(
            logging.WARNING if offset < state.high_watermark else logging.INFO,
            "%s is truncated from %d to %d (its high watermark is %d): %s",
            log.name,
            log.end_offset,
            offset,
            state.high_watermark,
            why,
        )
    log.truncate_to(offset)
    state.truncated(log.end_offset)


def _check_follows(partition: Partition, leader_epoch: int) -> None:
    if partition.log.failure is not None:
        raise partition.log.failure
    if not partition.follows(leader_epoch):
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
