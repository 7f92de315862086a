"""Opening a log after a clean stop without reading it: the files are as the stop left them.

A clean stop leaves a list of what each log holds (`segment_list`). When the names and sizes in a partition's
folder, the epochs' file and the topic's id are those of the list, the list says everything else too: where
the log ends, the largest timestamp of each segment, the leader epochs. Then no segment is opened, so that a
broker with thousands of partitions starts fast. Batches are checked when they are read, as those of all
segments are while the broker runs.

Anything that does not fit exactly is left to the `Loader`, which compares in detail and repairs.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ottla.storage.checkpoints import COMPACTED, LEADER_EPOCHS, PARTITION_METADATA, encode_partition_metadata
from ottla.storage.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from ottla.storage.files import Disk
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.loaded import Loaded
from ottla.storage.log_config import LogConfig
from ottla.storage.open_segments import OpenSegments
from ottla.storage.producer_state import ProducerStates
from ottla.storage.recovery_report import RecoveryReport
from ottla.storage.segment import Segment
from ottla.storage.segment_list import LogFiles
from ottla.storage.snapshots import Snapshots

_NO_TOPIC_ID = bytes(16)
_metadata_of = lru_cache(maxsize=16)(encode_partition_metadata)  # partitions of a topic follow one another


def open_as_closed(
    folder: Path,
    closed_as: LogFiles,
    config: LogConfig,
    *,
    disk: Disk,
    open_segments: OpenSegments,
    now_ms: int,
    was_cleaned: bool,
) -> Loaded | None:
    """The log in `folder`, if its files are those of `closed_as`; None when that is not certain."""
    try:
        sizes = disk.sizes(folder)
        is_marked = sizes.pop(COMPACTED, None) is not None
        if not (_files_fit(folder, closed_as, sizes, disk) and closed_as.segments):
            return None
        snapshots = _take_snapshots(disk, folder, sizes)
        if sizes or snapshots is None:
            return None  # files that the list does not know
        producers = ProducerStates(folder.name, config.producer_id_max_per_partition)
        end_offset = closed_as.end_offset
        if any(offset > end_offset for offset in snapshots.offsets):
            return None
        if closed_as.has_snapshot and snapshots.load(producers, end_offset, now_ms) != end_offset:
            return None
    except OSError:
        return None
    last = closed_as.segments[-1].base_offset
    segments = [
        Segment.as_closed(disk, folder, files, open_segments, now_ms, sealed=files.base_offset != last)
        for files in closed_as.segments
    ]
    epochs = LeaderEpochs(list(closed_as.epochs))
    epochs.truncate_end(end_offset)  # an epoch without records
    return Loaded(
        segments,
        closed_as.log_start_offset,
        end_offset,
        recovery_point=end_offset,
        leader_epochs=epochs,
        producers=producers,
        snapshots=snapshots,
        report=RecoveryReport(folder.name, clean=True),
        may_have_gaps=is_marked or was_cleaned or config.is_compacted,
        deleted_files=[],
        no_epochs_file=not closed_as.has_epochs_file,
    )


def _files_fit(folder: Path, closed_as: LogFiles, sizes: dict[str, int], disk: Disk) -> bool:
    """Whether the files of the list are there as they were. Removes their names from `sizes`."""
    for segment in closed_as.segments:
        base, size, index_size, time_index_size, *_ = segment
        if (
            sizes.pop(file_name(base, LOG_SUFFIX), None) != size
            or sizes.pop(file_name(base, INDEX_SUFFIX), 0) != index_size
            or sizes.pop(file_name(base, TIME_INDEX_SUFFIX), 0) != time_index_size
            or sizes.pop(file_name(base, TRANSACTION_INDEX_SUFFIX), 0) != segment.transaction_index_size
        ):
            return False
    if sizes.pop(PARTITION_METADATA, None) is None:
        if closed_as.topic_id != _NO_TOPIC_ID:
            return False
    elif disk.read(folder / PARTITION_METADATA) != _metadata_of(closed_as.topic_id):
        return False
    if (sizes.pop(LEADER_EPOCHS, None) is not None) != closed_as.has_epochs_file:
        return False
    if not closed_as.has_epochs_file:
        return True
    if any(start >= closed_as.end_offset for _, start in closed_as.epochs):
        return False  # the file has to be written anew
    return disk.read(folder / LEADER_EPOCHS) == LeaderEpochs(list(closed_as.epochs)).encode()


def _take_snapshots(disk: Disk, folder: Path, sizes: dict[str, int]) -> Snapshots | None:
    """The snapshots in the folder, whose names are removed from `sizes`; None for one with an odd name."""
    offsets = []
    for name in [name for name in sizes if name.endswith(SNAPSHOT_SUFFIX)]:
        stem = name.removesuffix(SNAPSHOT_SUFFIX)
        if not stem.isdigit():
            return None
        del sizes[name]
        offsets.append(int(stem))
    return Snapshots(disk, folder, offsets)
