"""What a log is made of and where it stands: the part that appending, reading, removing and flushing share.

Rules kept here:

* A log that turns out to be damaged goes offline: `failure` is set and raised by every call.

Two parts of it are objects of their own, which decide nothing about offsets: the segments and their files
(`segment_row`), and what a flush captures and syncs (`flushing`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.clock import Clock
from ottla.metrics import SharedHistogram
from ottla.protocol.errors import ApiError
from ottla.storage.cleaning.decisions import CleanableSegment
from ottla.storage.damaged_segment import DamagedSegment
from ottla.storage.failures import disk_refused, segment_damaged, sync_failed
from ottla.storage.files import Disk
from ottla.storage.flushing import Flushing
from ottla.storage.indexed_segment import SegmentInfo
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.log_config import FOREVER, LogConfig
from ottla.storage.open_segments import OpenSegments
from ottla.storage.producer_state import ProducerStates
from ottla.storage.segment import Segment
from ottla.storage.segment_list import LogFiles
from ottla.storage.segment_row import SegmentRow
from ottla.storage.slow_append import SlowAppend
from ottla.storage.snapshots import Snapshots
from ottla.storage.verification import VerificationGuard

logger = logging.getLogger(__name__)


class LogState:
    """The base of `Log`, which has no other subclass."""

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        folder: Path,
        config: LogConfig,
        *,
        disk: Disk,
        clock: Clock,
        open_segments: OpenSegments,
        segments: list[Segment],
        log_start_offset: int,
        end_offset: int,
        recovery_point: int,
        leader_epochs: LeaderEpochs,
        producers: ProducerStates,
        snapshots: Snapshots,
        may_have_gaps: bool = False,
        failure: ApiError | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.name = f"{topic}-{partition}"
        self.folder = folder
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.recovery_point = recovery_point
        self.leader_epochs = leader_epochs
        self.producers = producers
        self.failure = failure
        self.may_have_gaps = may_have_gaps  # offsets may be missing without anything being wrong
        self.write_seconds = 0.0  # how long the last write on the event loop took
        self.truncations = 0  # what was read before the log was cut need not be what is there now
        self.swapping = False  # cleaned segments are taking their places: nothing may be deleted meanwhile
        self.on_lower_recovery_point: Callable[[], None] | None = None  # has it written before a truncation
        self.on_cut: Callable[[int], None] | None = None  # is told of the new end before a truncation
        self.on_trouble: Callable[[LogState], None] | None = None  # its disk refused work, or it went offline
        self.on_failed_sync: Callable[[], None] | None = None  # is told before anybody else
        self.flush_seconds: SharedHistogram | None = None  # takes how long each flush spent on syncing
        is_new = recovery_point == 0
        self._clock = clock
        self._slow: SlowAppend | None = None  # its bytes are being written in a thread
        self._gap_seen = (-1, -1)  # from and to which offset a leader left some out, not yet believed
        self._row = SegmentRow(
            folder, segments, snapshots, disk=disk, clock=clock, open_segments=open_segments
        )
        self._row.folder_dirty = recovery_point < end_offset or is_new
        self._segments = self._row.segments
        self._bases = self._row.bases
        self._lock = threading.Lock()  # between appends and the thread that flushes
        self._flushing = Flushing(
            self.name, folder, self._row, leader_epochs, producers, disk=disk, clock=clock, is_new=is_new
        )
        self.configure(config)

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.end_offset})"

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._row.size

    @property
    def segments(self) -> list[SegmentInfo]:
        return [SegmentInfo(s.base_offset, s.size, s.load_max_timestamp()) for s in self._segments]

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def cleanable_segments(self, *, in_detail: bool = False) -> list[CleanableSegment]:
        """All segments as compaction sees them. `in_detail` looks at files for what only grouping asks."""
        dated = in_detail or self.config.max_compaction_lag_ms < FOREVER
        with self._guard("read"):
            return self._row.cleanable(dated=dated, in_detail=in_detail)

    def files(self) -> LogFiles:
        """What the log consists of, for the next start to compare with. Only for a log that is closed."""
        return LogFiles(
            self.topic_id,
            self.log_start_offset,
            self.end_offset,
            self._row.has_snapshot_at(self.end_offset) or len(self.producers) > 0,
            self._flushing.has_epochs_file,
            tuple(self.leader_epochs.entries),
            tuple([segment.as_files() for segment in self._segments]),
        )

    def configure(self, config: LogConfig) -> None:
        """Use `config` from the next append on."""
        self.config = config
        self.producers.limit = config.producer_id_max_per_partition
        if config.is_compacted:
            self.may_have_gaps = True
            self._flushing.mark_compacted()

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for so long; how many they were."""
        with self._lock:  # a flush may be writing them down
            return self.producers.expire(now_ms, expiration_ms)

    def forget_idle_producers(self, keep: int) -> int:
        """Forget the producers that were silent for longest until `keep` are left; how many they were."""
        with self._lock:
            return self.producers.forget_idle(keep)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where a reader of committed data may read."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(max(unstable, self.log_start_offset), high_watermark)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool = False
    ) -> VerificationGuard | None:
        """The guard to verify a transactional batch with; None when its transaction is open here already."""
        now = self._clock.now_ms()
        return self.producers.begin_verification(producer_id, epoch, sequence, now, bumps_epoch=bumps_epoch)

    def _check_online(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _go_offline(self, failure: ApiError) -> ApiError:
        self.failure = failure
        logger.error(failure.message)
        if self.on_trouble is not None:
            self.on_trouble(self)
        return failure

    def _sync_failed(self, from_offset: int, problem: OSError) -> ApiError:
        """Records from this offset on may be gone from the disk, and from the page cache as well."""
        if self.on_failed_sync is not None:
            self.on_failed_sync()
        return self._go_offline(sync_failed(self.name, self.folder, from_offset, problem))

    def _refused(self, what: str, problem: OSError) -> ApiError:
        if self.on_trouble is not None:
            self.on_trouble(self)
        return disk_refused(self.name, self.folder, what, problem)

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Raise as the log's own error what keeps it from doing `what`. (A fast path has its own.)"""
        try:
            yield
        except DamagedSegment as found:
            raise self._go_offline(segment_damaged(self.name, found.path, found.damage)) from found
        except OSError as problem:
            raise self._refused(what, problem) from problem

    def monotonic(self) -> float:
        """The time on the clock by which `write_seconds` is measured."""
        return self._clock.monotonic()
