"""Opens the logs of a data folder: what each partition's folder holds becomes a `Log`, or the reason why not.

A log that is as a clean stop left it is opened without being read (`clean_open`), others are recovered
(`recovery`). `LogDirectory` decides which folders are logs, and what is known of them from its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ottla.clock import Clock
from ottla.metrics import SharedHistogram
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.clean_open import open_as_closed
from ottla.storage.clean_stop import CleanStop
from ottla.storage.directory_checkpoints import NO_TOPIC_ID, DirectoryCheckpoints
from ottla.storage.files import Disk
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.loaded import Loaded
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.log_state import LogState
from ottla.storage.open_segments import OpenSegments
from ottla.storage.producer_state import ProducerStates
from ottla.storage.recovery import Loader
from ottla.storage.segment import Segment
from ottla.storage.segment_list import LogFiles
from ottla.storage.snapshots import Snapshots


class LogOpening:
    """`config_for` tells the configuration of a topic's logs; the rest is as in `LogDirectory`."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        open_segments: OpenSegments,
        checkpoints: DirectoryCheckpoints,
        offsets: LogOffsets,
        clean_stop: CleanStop,
        *,
        config_for: Callable[[str], LogConfig],
        flush_seconds: SharedHistogram | None,
        on_trouble: Callable[[LogState], None] | None,
        on_failed_sync: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._open_segments = open_segments
        self._checkpoints = checkpoints
        self._offsets = offsets
        self._clean_stop = clean_stop
        self._config_for = config_for
        self._flush_seconds = flush_seconds
        self._on_trouble = on_trouble
        self._on_failed_sync = on_failed_sync

    def as_closed(self, key: TopicPartition, folder: Path, closed_as: LogFiles) -> tuple[Log, Loaded] | None:
        """A log that is as a clean stop left it, without reading it; None when it is not."""
        config = self._config_for(key[0])
        loaded = open_as_closed(
            folder,
            closed_as,
            config,
            disk=self._disk,
            open_segments=self._open_segments,
            now_ms=self._clock.now_ms(),
            was_cleaned=key in self._offsets.cleaned,
        )
        if loaded is None:
            return None
        return self._log(key, closed_as.topic_id, folder, config, loaded), loaded

    def recovered(
        self, key: TopicPartition, folder: Path, *, power_lost: bool, log_start_offset: int | None
    ) -> tuple[Log, Loaded]:
        """A log of which the checkpoints tell what has to be checked. A damaged one refuses everything."""
        config = self._config_for(key[0])
        loaded = Loader(
            folder.name,
            folder,
            config,
            disk=self._disk,
            clock=self._clock,
            open_segments=self._open_segments,
            clean=self._clean_stop.was_clean,
            power_lost=power_lost,
            cleaned_to=self._offsets.cleaned.get(key),
            high_watermark=self._offsets.high_watermarks.get(key, 0),
            recovery_point=self._offsets.recovery_points.get(key, 0),
            log_start_offset=log_start_offset,
            closed_as=self._clean_stop.logs.get(key),
        ).load()
        try:
            topic_id = self._checkpoints.read_topic_id(folder)
        except OSError as problem:
            topic_id = NO_TOPIC_ID
            loaded.report.failure = f"{folder.name} is offline: {problem}"
            loaded.failure = loaded.failure or ApiError(ErrorCode.KAFKA_STORAGE_ERROR, loaded.report.failure)
        return self._log(key, topic_id, folder, config, loaded), loaded

    def created(self, key: TopicPartition, topic_id: bytes, folder: Path, config: LogConfig) -> Log:
        """An empty log in a folder that does not exist. OSError when the disk does not let us."""
        self._disk.make_folder(folder)
        if topic_id != NO_TOPIC_ID:
            self._checkpoints.write_topic_id(folder, topic_id)
        segment = Segment.create(self._disk, folder, 0, self._open_segments, self._clock.now_ms())
        log = self._connected(
            Log(
                *key,
                topic_id,
                folder,
                config,
                disk=self._disk,
                clock=self._clock,
                open_segments=self._open_segments,
                segments=[segment],
                log_start_offset=0,
                end_offset=0,
                recovery_point=0,
                leader_epochs=LeaderEpochs(),
                producers=ProducerStates(folder.name, config.producer_id_max_per_partition),
                snapshots=Snapshots(self._disk, folder),
            )
        )
        log.epochs_file_is_missing()
        return log

    def _log(
        self, key: TopicPartition, topic_id: bytes, folder: Path, config: LogConfig, loaded: Loaded
    ) -> Log:
        log = self._connected(
            Log(
                *key,
                topic_id,
                folder,
                config,
                disk=self._disk,
                clock=self._clock,
                open_segments=self._open_segments,
                segments=loaded.segments,
                log_start_offset=loaded.log_start_offset,
                end_offset=loaded.end_offset,
                recovery_point=loaded.recovery_point,
                leader_epochs=loaded.leader_epochs,
                producers=loaded.producers,
                snapshots=loaded.snapshots,
                may_have_gaps=loaded.may_have_gaps,
                failure=loaded.failure,
            )
        )
        if loaded.failure is None:
            log.load_active_transactions()
        if loaded.no_epochs_file:
            log.epochs_file_is_missing()
        return log

    def _connected(self, log: Log) -> Log:
        """What the log tells its data folder."""
        key = log.topic, log.partition
        log.on_lower_recovery_point = self._offsets.write_recovery_points
        log.on_cut = lambda end_offset: self._offsets.lower_high_watermark(key, end_offset)
        log.flush_seconds = self._flush_seconds
        log.on_trouble = self._on_trouble
        log.on_failed_sync = self._on_failed_sync
        return log
