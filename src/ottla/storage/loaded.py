"""What opening a partition's folder gives: a log's parts, or the reason why it is offline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ottla.protocol.errors import ApiError
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.producer_state import ProducerStates
from ottla.storage.recovery_report import RecoveryReport
from ottla.storage.scan import Damaged
from ottla.storage.segment import Segment
from ottla.storage.snapshots import Snapshots

REMEDY = (
    "Restore the file from a replica or a backup, or delete the partition's folder to start it empty, then "
    "restart the broker"
)


@dataclass
class Loaded:
    """A partition's folder, opened."""

    segments: list[Segment]
    log_start_offset: int
    end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: Snapshots
    report: RecoveryReport
    may_have_gaps: bool
    deleted_files: list[Path]  # to be removed when the start of the log has been written down
    no_epochs_file: bool
    failure: ApiError | None = None


class Offline(Exception):
    """The folder holds damage that no crash explains."""


def offline_at(segment: Segment, damage: Damaged) -> Offline:
    """The damage as a reason for the operator: which byte of which file is wrong."""
    return Offline(
        f"{damage.reason} at byte {damage.position} of {segment.path}. "
        f"`ottla log inspect {segment.path}` shows what is there. {REMEDY}"
    )


def offline_in(folder: Path, damage: Damaged) -> Offline:
    """The same where it is not known which segment of the folder is wrong."""
    return Offline(f"{damage.reason} at byte {damage.position} of a segment in {folder}")
