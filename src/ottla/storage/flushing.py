"""What of a log is written but not yet on disk, and how a flush brings it there.

Everything a log writes goes to the page cache first: batches, indexes, snapshots, the leader epochs' file,
the names in its folder. A flush has three steps, because syncing takes long and appends go on beside it:

1. `capture`, under the log's lock: note where the log ends, and which files hold what lies before that.
2. `sync`, without the lock: sync those files, then the folders whose names have changed.
3. The log, under its lock again, moves the recovery point to the end that was captured, unless it has been
   cut meanwhile. What lies before the recovery point has reached the disk.

Every now and then a flush also brings the indexes and a snapshot of the producers to disk: a recovery after a
crash begins there instead of at the beginning of the segment.

A stop with many logs syncs them all at once: each writes what a start wants to find (`write_all`), the
directory syncs the whole file system, and each notes that it has been synced (`all_is_synced`).
"""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import NamedTuple

from ottla.clock import Clock
from ottla.storage.checkpoints import COMPACTED, LEADER_EPOCHS, PARTITION_METADATA, REPLICATED_GAPS
from ottla.storage.failures import disk_refused
from ottla.storage.files import Disk, File
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.producer_state import ProducerStates
from ottla.storage.segment_row import SegmentRow

logger = logging.getLogger(__name__)

# Bytes between two snapshots that a flush takes, which bound what recovery scans.
SNAPSHOT_INTERVAL = 16 << 20


class Captured(NamedTuple):
    """What one flush has to sync."""

    files: list[File]
    folder: bool
    parent: bool  # of the folder: the log is new, and its name may not be on disk


class Flushing:
    """Owned by one log."""

    __slots__ = (
        "_clock",
        "_disk",
        "_epochs",
        "_epochs_written",
        "_folder",
        "_has_replicated_gaps",
        "_is_marked",
        "_is_new",
        "_last",
        "_name",
        "_producers",
        "_row",
        "epochs_dirty",
        "has_epochs_file",
        "one_at_a_time",
    )

    def __init__(
        self,
        name: str,
        folder: Path,
        row: SegmentRow,
        leader_epochs: LeaderEpochs,
        producers: ProducerStates,
        *,
        disk: Disk,
        clock: Clock,
        is_new: bool,
    ) -> None:
        self._name = name
        self._folder = folder
        self._row = row
        self._epochs = leader_epochs
        self._producers = producers
        self._disk = disk
        self._clock = clock
        self._is_new = is_new  # the name of its folder may not be on disk yet
        self._is_marked = False
        self._has_replicated_gaps = False
        self._last = clock.monotonic()  # the wall clock may jump back, and hold up a flush
        self._epochs_written = self.has_epochs_file = True
        self.epochs_dirty = False  # their file, as it should be, may not be on disk
        self.one_at_a_time = threading.Lock()

    # -- written now, synced by the next flush -------------------------------------------------------

    def write_epochs(self) -> None:
        """Write the epochs' file. It reaches the disk with the next flush; until then, and when the disk is
        full, the batches themselves tell the epochs to a recovery."""
        self.epochs_changed()
        try:
            self._disk.replace(self._folder / LEADER_EPOCHS, self._epochs.encode(), sync=False)
        except OSError as problem:
            logger.warning("%s: cannot write %s: %s", self._name, LEADER_EPOCHS, problem)
        else:
            self._epochs_written = self.has_epochs_file = True

    def epochs_file_is_missing(self) -> None:
        """There is none yet."""
        self.has_epochs_file = False
        self.epochs_changed()

    def _spares_epochs(self, end_offset: int) -> bool:
        """Whether a stop need not make the epochs' file: the few batches of a short log tell the same."""
        return (
            not self.has_epochs_file
            and len(self._row.segments) == 1
            and self._row.segments[0].has_no_index_entries()
            and all(start < end_offset for _, start in self._epochs.entries)
        )

    def epochs_changed(self) -> None:
        """The epochs' file has to be written, by the next flush at the latest."""
        self.epochs_dirty = True
        self._epochs_written = False

    def mark_compacted(self) -> None:
        """Mark the folder, before a record is compacted away: offsets may be missing."""
        if not self._is_marked:
            self._is_marked = self._mark(b"")

    def mark_replicated_gaps(self) -> None:
        """The same for a follower, whose active segment may lack offsets as well."""
        if not self._has_replicated_gaps:
            self._is_marked = self._has_replicated_gaps = self._mark(REPLICATED_GAPS)

    def _mark(self, content: bytes) -> bool:
        try:
            self._disk.replace(self._folder / COMPACTED, content, sync=False)
        except OSError as problem:
            logger.warning("%s: cannot write %s: %s", self._name, COMPACTED, problem)
            return False
        self._row.folder_dirty = True
        return True

    # -- when ----------------------------------------------------------------------------------------

    def since_last_ms(self) -> float:
        return (self._clock.monotonic() - self._last) * 1000

    def state_is_due(self) -> bool:
        """Whether the log has grown so much that a flush takes a snapshot as well."""
        return self._row.grown_since_snapshot >= SNAPSHOT_INTERVAL

    def is_worthwhile(self, recovery_point: int) -> bool:
        """Whether a flush that no request waits for would spare the next recovery a long scan."""
        return recovery_point < self._row.bases[-1] or self.state_is_due()

    def nothing_to_do(self, recovery_point: int, end_offset: int) -> bool:
        """Whether the files already say all there is to say, so that the log may just be closed."""
        if recovery_point != end_offset:
            return False
        if self._row.size == 0:
            return not len(self._producers)
        return (
            (not self.epochs_dirty or self._spares_epochs(end_offset))
            and (end_offset in self._row.snapshots.offsets or self._row.needs_no_snapshot(self._producers))
            and self._row.segments[-1].indexes_are_finished
        )

    # -- the steps -----------------------------------------------------------------------------------

    def capture(
        self, recovery_point: int, end_offset: int, *, with_state: bool, closing: bool = False
    ) -> Captured:
        """The first step. ApiError, and nothing is lost from what is to be synced, when the disk refuses."""
        row = self._row
        try:
            files: list[File] = []
            for segment in row.segments[max(row.slot_of(recovery_point), 0) :]:
                files += segment.files_to_sync()
            if self.epochs_dirty:
                if not self._epochs_written:
                    self.write_epochs()
                files.append(self._disk.open(self._folder / LEADER_EPOCHS))
            if self._is_new:
                files += self._metadata_file()
        except OSError as problem:
            raise disk_refused(self._name, self._folder, "flush", problem) from problem
        if with_state:
            try:
                files += row.write_state(end_offset, self._producers, closing=closing)
            except OSError as problem:
                if closing:
                    raise disk_refused(self._name, self._folder, "close", problem) from problem
                logger.warning("%s: a recovery will take longer, no snapshot: %s", self._name, problem)
        captured = Captured(files, row.folder_dirty or self.epochs_dirty or with_state, self._is_new)
        self._is_new = row.folder_dirty = self.epochs_dirty = False
        return captured

    def write_all(self, end_offset: int) -> None:
        """Write what a start after a clean stop wants to find. ApiError when the disk refuses."""
        spares_epochs = self._spares_epochs(end_offset)
        if not self._epochs_written and not spares_epochs:
            self.write_epochs()
        try:
            if not self._epochs_written and not spares_epochs:
                raise OSError(errno.EIO, f"cannot write {LEADER_EPOCHS}")
            self._row.write_state(end_offset, self._producers, closing=True)
        except OSError as problem:
            raise disk_refused(self._name, self._folder, "close", problem) from problem

    def all_is_synced(self) -> None:
        """The whole file system has been synced since `write_all`."""
        self._is_new = self._row.folder_dirty = False
        self.epochs_dirty = not self._epochs_written
        self._last = self._clock.monotonic()

    def _metadata_file(self) -> list[File]:
        try:
            return [self._disk.open(self._folder / PARTITION_METADATA)]
        except FileNotFoundError:
            return []  # a log without a topic id

    def sync(self, captured: Captured) -> None:
        """The second step. Blocks. After an OSError it is unknown what is on disk."""
        for file in captured.files:
            file.sync()
        if captured.folder:
            self._disk.sync_folder(self._folder)
        if captured.parent:
            self._disk.sync_folder(self._folder.parent)
        self._last = self._clock.monotonic()
