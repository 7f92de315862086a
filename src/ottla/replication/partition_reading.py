"""A partition as its readers see it: up to where they may read, and what they get.

A part of `Partition`; nothing here changes anything but the start of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.replica_state import ReplicaState
from ottla.storage.log import FileSlice, Log
from ottla.storage.log_config import LogConfig
from ottla.storage.producer_snapshot import ProducerState
from ottla.storage.results import OffsetAndTime
from ottla.storage.time_search import TimeSearch
from ottla.storage.transaction_index import AbortedTransaction


class Isolation(IntEnum):
    """Up to where a reader sees the log."""

    LOG_END = 0
    """All of it, as followers do."""
    HIGH_WATERMARK = 1
    """What every in-sync replica has."""
    LAST_STABLE_OFFSET = 2
    """What belongs to no open transaction, besides."""


_LOG_END, _HIGH_WATERMARK, _LAST_STABLE_OFFSET = Isolation


class PartitionRead(NamedTuple):
    """What a fetch learns: a slice of a file, not bytes, and where the partition stands."""

    records: FileSlice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction]
    """Among the records, for a reader of committed ones."""


_NONE_ABORTED: Sequence[AbortedTransaction] = ()


class PartitionReading:
    """The log of a partition and its state as a replica."""

    __slots__ = ("index", "log", "state", "topic", "topic_id")

    def __init__(self, topic: str, index: int, topic_id: bytes, log: Log, state: ReplicaState) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.state = state

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last record in the log, visible or not."""
        return self.log.end_offset

    @property
    def size(self) -> int:
        """Bytes of its log."""
        return self.log.size

    @property
    def segment_count(self) -> int:
        return self.log.segment_count

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        return self.log.config

    @property
    def producers(self) -> list[ProducerState]:
        """The idempotent and transactional producers that it remembers."""
        return self.log.producers.active

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last record."""
        return self.log.leader_epochs.latest

    @property
    def epoch_at_log_start(self) -> int:
        """The leader epoch of the first record."""
        return self.log.leader_epochs.epoch_for(self.log.log_start_offset)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to `leader_epoch` in the log, and the offset behind its last record."""
        return self.log.leader_epochs.end_offset_for(leader_epoch, self.log.end_offset)

    def divergence(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where the log of a reader parted from this one: an epoch and its end here. None when it did not.

        OFFSET_OUT_OF_RANGE when the epoch is newer than that of every record here.
        """
        epoch, end = self.end_of_epoch(last_fetched_epoch)
        if epoch < 0:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic}-{self.index} has no record of leader epoch {last_fetched_epoch}",
            )
        return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.state.high_watermark)

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation, at_least_one: bool, *, wait: bool = True
    ) -> PartitionRead:
        """What a reader may see from `offset` on.

        OFFSET_OUT_OF_RANGE outside of the log. NotInMemory when the disk would have to be waited for and
        `wait` is False.
        """
        log = self.log
        high_watermark = self.state.high_watermark
        stable = log.last_stable_offset(high_watermark)
        if isolation is _HIGH_WATERMARK:
            limit = high_watermark
        else:
            limit = stable if isolation is _LAST_STABLE_OFFSET else log.end_offset
        records = log.read(offset, max_bytes, limit, at_least_one, wait=wait)
        aborted = _NONE_ABORTED
        if isolation is _LAST_STABLE_OFFSET and records is not None:
            aborted = log.aborted_in(offset, records, wait=wait)
        return PartitionRead(records, high_watermark, stable, log.log_start_offset, aborted)

    def end_for(self, isolation: Isolation) -> int:
        """The offset behind the last record that such a reader may see."""
        if isolation is _LOG_END:
            return self.log.end_offset
        return self.high_watermark if isolation is _HIGH_WATERMARK else self.last_stable_offset

    @property
    def knows_high_watermark(self) -> bool:
        """False of a new leader whose followers have not reported: what was committed may reach further."""
        state = self.state
        return not state.has_followers or state.high_watermark >= state.epoch_start

    def searches_since(self, timestamp: int) -> Iterator[TimeSearch | None]:
        """Where to look for the first record with at least that timestamp; see `Log.searches_since`."""
        return self.log.searches_since(timestamp)

    def searches_newest(self) -> Iterator[TimeSearch | None]:
        """Where to look for the record with the largest timestamp."""
        return self.log.searches_newest()

    def run_search(
        self,
        search: TimeSearch,
        *,
        pause: Callable[[], object] | None = None,
        only_small: bool = False,
        is_late: Callable[[], bool] | None = None,
    ) -> OffsetAndTime | None:
        """Look in one place; see `Log.run_search`."""
        return self.log.run_search(search, pause=pause, only_small=only_small, is_late=is_late)

    def delete_records_before(self, offset: int) -> int:
        """Move the log start up; -1 stands for the high watermark. Returns the new log start."""
        target = self.state.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.state.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {target} is above the high watermark {self.state.high_watermark}",
            )
        self.log.delete_records_before(target)
        return self.log.log_start_offset
