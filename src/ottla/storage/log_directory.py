"""A data folder: the logs of all partitions that this broker hosts.

`open` takes the folder (no second broker may use it), reads the checkpoints and opens every partition's log;
what that took is reported per partition. A damaged partition is opened too, as one that refuses everything.
`close` leaves the folder so that the next `open` has nothing to do.

The layout is Kafka's: a folder `topic-partition` per partition and the checkpoint files beside them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from ottla.clock import Clock
from ottla.metrics import SharedHistogram
from ottla.protocol.errors import ApiError
from ottla.storage.checkpoints import (
    COMPACTED,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    TopicPartition,
    differs_by_damage,
)
from ottla.storage.clean_stop import CleanStop
from ottla.storage.closing import close_logs
from ottla.storage.descriptors import descriptors_for_files
from ottla.storage.directory_checkpoints import NO_TOPIC_ID, DirectoryCheckpoints
from ottla.storage.files import Disk, Lock, LockHeld
from ottla.storage.log import Log
from ottla.storage.log_config import FOREVER, LogConfig
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.log_opening import LogOpening
from ottla.storage.log_state import LogState
from ottla.storage.open_segments import OpenSegments
from ottla.storage.recovery_report import RecoveryReport
from ottla.storage.removed_folders import RemovedFolders

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
_LOG_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)(\..+)?")
_NAMED_FILES = (PARTITION_METADATA, LEADER_EPOCHS, COMPACTED)
_PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")


class DirectoryInUse(Exception):
    """Another process works in this data folder."""


class LogDirectory:
    """The logs under one path. `config_for` tells the configuration of a topic's logs at `open`."""

    def __init__(
        self,
        path: Path,
        disk: Disk,
        clock: Clock,
        *,
        config_for: Callable[[str], LogConfig] | None = None,
        max_open_files: int | None = None,
        flush_seconds: SharedHistogram | None = None,
        on_trouble: Callable[[LogState], None] | None = None,
    ) -> None:
        """`on_trouble` is told, in any thread, when the disk refuses work of a log or a log goes offline."""
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self._power_lost = False
        self._sync_failed = False
        self._disk = disk
        self._clock = clock
        self._lock: Lock | None = None
        self._removed_folders = RemovedFolders(path, disk, clock)
        self._checkpoints = DirectoryCheckpoints(path, disk)
        self._offsets = LogOffsets(self._checkpoints, self.logs)
        self._clean_stop = CleanStop(path, disk)
        self._opening = LogOpening(
            disk,
            clock,
            OpenSegments(max_open_files or descriptors_for_files()),
            self._checkpoints,
            self._offsets,
            self._clean_stop,
            config_for=config_for or (lambda topic: LogConfig()),
            flush_seconds=flush_seconds,
            on_trouble=on_trouble,
            on_failed_sync=self._forget_boot,
        )

    # -- open and close ------------------------------------------------------------------------------

    def open(self, *, note_boot: bool = True) -> list[RecoveryReport]:
        """Take the folder and open all logs in it.

        Without `note_boot` the caller calls that itself, when all that follows from a loss of power is done:
        a start that is interrupted before that is followed by one that knows of the loss, too.
        """
        self._disk.make_folder(self.path)
        try:
            self._lock = self._disk.lock(self.path / LOCK_FILE, f"pid {os.getpid()}")
        except LockHeld as held:
            raise DirectoryInUse(
                f"the data folder {self.path} is used by another broker "
                f"({held.holder or 'unknown process'}); stop it or choose another folder"
            ) from held
        names = self._disk.list(self.path)
        self._clean_stop.begin(names)
        boot_id = self._disk.boot_id()
        last_boot_id = self._checkpoints.read_boot_id()
        self._power_lost = not boot_id or last_boot_id != boot_id
        if note_boot:
            self.note_boot()
        # After a loss of power the sums may be older or newer than the files.
        self._checkpoints.read_sums(are_current=self._clean_stop.is_ours and not self._power_lost)
        offsets = self._offsets
        offsets.read()
        reports = []
        for name in sorted(names):
            folder = self.path / name
            match = _PARTITION_FOLDER.fullmatch(name)
            if self._removed_folders.found(name) or match is None:
                continue
            key = match["topic"], int(match["partition"])
            if self.was_clean and key in self._clean_stop.logs:
                opened = self._opening.as_closed(key, folder, self._clean_stop.logs[key])
                if opened is not None:
                    self.logs[key], loaded = opened
                    reports.append(loaded.report)
                    continue
            if not self._disk.is_folder(folder):
                continue
            if key not in offsets.recovery_points and not self._is_ours(folder):
                logger.warning("%s holds nothing that a log has; it is left alone", folder)
                continue
            start = offsets.log_starts.get(key)
            if start is None and self._power_lost and last_boot_id and key not in offsets.recovery_points:
                start = 0  # it was created after the last checkpoints, and nothing of it was deleted since
            self.logs[key], loaded = self._opening.recovered(
                key, folder, power_lost=self._power_lost, log_start_offset=start
            )
            for path in loaded.deleted_files:
                self._removed_folders.found_file(path)
            reports.append(loaded.report)
        self._clean_stop.opened({key for key, log in self.logs.items() if log.failure is not None})
        if gone := offsets.opened():
            self._forget_offsets([key for key, recovery_point in gone.items() if recovery_point])
        return reports

    def _forget_offsets(self, gone: list[TopicPartition]) -> None:
        """A partition whose folder is gone begins empty: no later start may believe that it was longer."""
        if gone:
            logger.warning(
                "%s: the folders of %d partitions are gone; they begin empty if their topics exist: %s",
                self.path,
                len(gone),
                ", ".join(sorted(f"{topic}-{partition}" for topic, partition in gone)[:10]),
            )
        try:
            self._offsets.write_recovery_points()
            self.checkpoint_log_starts()
        except OSError as problem:
            logger.error("%s: cannot write the checkpoints: %s", self.path, problem)

    @property
    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """Up to where logs were committed when that was last written, as `open` has read it."""
        return self._offsets.high_watermarks

    @property
    def cleaned_offsets(self) -> dict[TopicPartition, int]:
        """Up to where each log is compacted."""
        return self._offsets.cleaned

    @property
    def was_clean(self) -> bool:
        """Whether the folder was left by a clean stop."""
        return self._clean_stop.was_clean

    @property
    def may_have_lost(self) -> bool:
        """Whether records may be gone that were there before: those that had not reached the disk."""
        return self._power_lost and not self.was_clean

    def note_boot(self) -> None:
        """Write down in which run of the machine the folder is used."""
        if not self._sync_failed:
            self._checkpoints.write_boot_id(self._disk.boot_id())

    def _forget_boot(self) -> None:
        """After a failed sync the page cache need not hold what was written, so the next start has to take
        the stop for a loss of power, also if this process ends before it could tell anybody."""
        self._sync_failed = True
        try:
            self._checkpoints.forget_boot_id()
        except OSError as problem:
            logger.error("%s: the next start may not know that a sync failed: %s", self.path, problem)

    def close(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None, *, broker_epoch: int = -1
    ) -> None:
        """Close all logs; after a clean close of all of them the next `open` needs no scan. Blocks."""
        outcomes = close_logs(list(self.logs.values()), self._disk, self.path)
        if all(outcomes.values()):
            try:
                self.checkpoint(high_watermarks)
                closed = {key: log.files() for key, log in self.logs.items()}
                self._clean_stop.finish(closed, broker_epoch)
            except OSError as problem:
                logger.error("%s: the next start will scan the logs: %s", self.path, problem)
        self._release()

    def abandon(self, in_use: Collection[tuple[str, int]] = ()) -> None:
        """Let go of everything as it is, as a crash would.

        Files of logs that are `in_use` stay open. Then the folder stays locked until this process ends, so
        that a write which hangs does not meet another broker's records.
        """
        for key, log in self.logs.items():
            if key not in in_use:
                log.close(clean=False)
        if not in_use:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- partitions ----------------------------------------------------------------------------------

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """The log of a partition, made when it is not there. OSError when the disk does not let us.

        A log of the same name and another topic id is what is left of a deleted topic, and goes.
        """
        key = topic, partition
        log = self.logs.get(key)
        if log is not None:
            if log.topic_id == topic_id or NO_TOPIC_ID in (log.topic_id, topic_id):
                if log.topic_id != topic_id != NO_TOPIC_ID and log.failure is None:
                    # A crash came between the folder and the file with its id.
                    self._checkpoints.write_topic_id(log.folder, topic_id)
                    log.topic_id = topic_id
                log.configure(config)
                return log
            if differs_by_damage(log.topic_id, topic_id) and log.failure is None:
                logger.warning("%s is damaged, and is written again", log.folder / PARTITION_METADATA)
                self._checkpoints.write_topic_id(log.folder, topic_id)
                log.topic_id = topic_id
                log.configure(config)
                return log
            logger.warning(
                "%s belongs to a topic that was deleted and made again; its old records go", log.name
            )
            self.delete(topic, partition)
        folder = self.path / f"{topic}-{partition}"
        if self._disk.is_folder(folder):
            if not self._is_ours(folder):
                raise FileExistsError(errno.EEXIST, "this folder is not one of ours", str(folder))
            self._disk.remove_folder(folder)  # what a deletion or a creation left that the disk cut short
        log = self.logs[key] = self._opening.created(key, topic_id, folder, config)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Take a partition out."""
        self.delete_all([(topic, partition)])

    def delete_all(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions out. Folders are renamed at once and removed after file.delete.delay.ms. Blocks."""
        self._take_out(partitions, self._removed_folders.delete)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        """Take out partitions that the cluster does not know. Blocks.

        Their topics may have been deleted while the broker was down, or the registry may be an old copy. So
        the folders are kept under another name for a week, over restarts, also when space is short.
        """
        self._take_out(partitions, self._removed_folders.set_aside)

    def _take_out(self, partitions: Iterable[TopicPartition], dispose: Callable[[Log], None]) -> None:
        gone = []
        for key in partitions:
            log = self.logs.pop(key, None)
            if log is not None:
                log.close(clean=False)
                dispose(log)
                gone.append(log)
        self._offsets.forget(gone)

    def delete_pending(self) -> int:
        """Remove files and folders of deleted segments and partitions whose delay is over. Blocks."""
        return self._delete_due(self._clock.now_ms())

    def delete_all_pending(self) -> int:
        """Remove them now, delay or not: space is short. Blocks."""
        return self._delete_due(FOREVER)

    def _delete_due(self, due_ms: int) -> int:
        """First the new starts of the logs are written down: a first segment that is missing without that,
        and without a renamed file, was not deleted by us."""
        noted = self._note_log_starts()
        removed = sum(log.remove_deleted(due_ms) for log in list(self.logs.values()))
        removed += self._removed_folders.remove_due(due_ms)
        if not noted:
            self._note_log_starts()  # there may be space now
        return removed

    def _note_log_starts(self) -> bool:
        try:
            self.checkpoint_log_starts()
        except OSError as problem:
            logger.error("%s: cannot write %s: %s", self.path, LOG_STARTS, problem)
            return False
        return True

    # -- checkpoints ---------------------------------------------------------------------------------

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write recovery points, log starts and, when given, high watermarks. Blocks.

        Logs that have grown much since their last flush are flushed first: the time a start takes after a
        crash depends on what lies behind the recovery points.
        """
        for log in list(self.logs.values()):
            if log.flush_worthwhile():
                try:
                    log.flush()
                except ApiError as problem:
                    logger.error("flushing %s: %s", log.name, problem.message)
        self._offsets.write_recovery_points()
        self._offsets.write_log_starts()
        if high_watermarks is not None:
            self._offsets.write_high_watermarks(high_watermarks)

    def checkpoint_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """Write up to where records are committed, unless that is what was written last. Blocks."""
        self._offsets.write_changed_high_watermarks(marks)

    def checkpoint_cleaned(self) -> None:
        """Write up to where the logs are compacted. Blocks."""
        self._offsets.write_cleaned()

    def checkpoint_log_starts(self) -> None:
        """Write where the logs start. Blocks."""
        self._offsets.write_log_starts()

    def _is_ours(self, folder: Path) -> bool:
        """Whether a folder with the name of a partition is one. Others may keep their things beside ours."""
        names = self._disk.list(folder)
        # Files may still have their temporary name, and a loss of power keeps any of them.
        return not names or any(n.startswith(_NAMED_FILES) or _LOG_FILE.fullmatch(n) for n in names)

    # -- about the folder ----------------------------------------------------------------------------

    def read_meta(self) -> dict[str, str]:
        """`meta.properties`: which cluster and node this folder belongs to; empty for a new folder.

        CorruptCheckpoint when there is such a file and it does not say that.
        """
        return self._checkpoints.read_meta()

    def write_meta(self, values: Mapping[str, str]) -> None:
        self._checkpoints.write_meta(values)

    @property
    def size(self) -> int:
        """Bytes of all logs."""
        return sum(log.size for log in self.logs.values())

    def space(self) -> tuple[int, int]:
        """Bytes of the file system: in all, and still free."""
        return self._disk.space(self.path)
