"""Closing all logs of a data folder, fast also where there are thousands of them.

Every log has files to write and to sync. From some number on, one sync of the whole file system costs less
than several syncs for each log (decision 009); fewer logs are closed by several threads, which wait for the
disk together.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ottla.protocol.errors import ApiError
from ottla.storage.descriptors import descriptors_for_clients
from ottla.storage.files import Disk
from ottla.storage.log import Log

logger = logging.getLogger(__name__)

_MOST_CLOSERS = 32
_FILES_OF_CLOSER = 8  # open at once while a log of one segment is closed
_MANY = 32  # logs to be synced on a stop, from which on one sync of all costs less than many


def close_logs(logs: Sequence[Log], disk: Disk, folder: Path) -> dict[Log, bool]:
    """Close them; for each whether it was closed cleanly. Blocks."""
    unsettled = [log for log in logs if not log.is_settled]
    if len(unsettled) >= _MANY:
        _settle_together(unsettled, disk, folder)
    unsettled = [log for log in unsettled if not log.is_settled]
    outcomes: dict[Log, bool] = {}
    if disk.has_latency:
        # Syncs that wait for the disk together cost little more than one.
        with ThreadPoolExecutor(_closers(), "close-log") as threads:
            outcomes.update(zip(unsettled, threads.map(_close, unsettled), strict=True))
    for log in logs:
        if log not in outcomes:
            outcomes[log] = _close(log)
    return outcomes


def _settle_together(logs: list[Log], disk: Disk, folder: Path) -> None:
    """Write what these logs have to leave, and sync all of it by one call instead of several for each.

    Nothing counts as synced before that call has returned. What fails is left to closing one by one.
    """
    written = []
    for log in logs:
        try:
            log.write_all()
        except ApiError as problem:
            logger.warning("%s: trying again: %s", log.name, problem.message)
        else:
            written.append(log)
    try:
        disk.sync_all(folder)
    except OSError as problem:
        if problem.errno != errno.ENOSYS:
            logger.warning("%s: syncing file by file, not all at once: %s", folder, problem)
        return
    for log in written:
        log.all_is_synced()


def _closers() -> int:
    """How many threads close logs: by then the descriptors of clients are free for their files."""
    return max(min(descriptors_for_clients() // _FILES_OF_CLOSER, _MOST_CLOSERS), 1)


def _close(log: Log) -> bool:
    """Close a log; False when it has to be scanned at the next start.

    That is also so for a log that is offline: it must be found damaged again. Without the marker of a clean
    stop the others, whose recovery point is their end, cost the next start little.
    """
    online = log.failure is None
    try:
        log.close()
    except ApiError as problem:
        logger.error("%s was not closed cleanly: %s", log.name, problem.message)
        return False
    return online
