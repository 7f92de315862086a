"""What a log says when its disk or its files fail it: what happened, what follows, what an operator can do.

`disk_refused` leaves the log in use, for nothing was changed. After the other two the log is offline until
the broker has started again.
"""

from __future__ import annotations

import errno
from pathlib import Path

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.scan import Damaged


def disk_refused(log: str, folder: Path, what: str, problem: OSError) -> ApiError:
    """The disk did not let the log `what`, and nothing was changed."""
    if problem.errno in (errno.EMFILE, errno.ENFILE):
        cure = "the process or the system has too many files open: raise ulimit -n and restart the broker"
    else:
        cure = "it works again by itself when the disk does (free some space if it is full)"
    message = (
        f"{log}: cannot {what} in {folder.parent}: {problem.strerror or problem}. Nothing was changed; {cure}"
    )
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)


def segment_damaged(log: str, path: Path, damage: Damaged) -> ApiError:
    """The file at `path` holds what no log would have written."""
    message = (
        f"{log} is offline: {damage.reason} at byte {damage.position} of {path}. "
        f"`ottla log inspect {path}` shows what is there; restore the file from a replica or a "
        "backup, or delete the partition's folder to start it empty, then restart the broker"
    )
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)


def sync_failed(log: str, folder: Path, recovery_point: int, problem: OSError) -> ApiError:
    """What could not be synced may be gone from the page cache as well: only a recovery can tell."""
    message = (
        f"{log} is offline: syncing {folder} failed ({problem.strerror or problem}), "
        f"so records from offset {recovery_point} on may not be on disk. Check the disk, "
        "then restart the broker"
    )
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
