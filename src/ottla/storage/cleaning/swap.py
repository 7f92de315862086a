"""How cleaned segments take the place of the old ones, so that a crash at any moment loses nothing.

The steps, for one new segment and the old ones whose survivors it holds:

1. `00.log.cleaned` and its indexes are whole and synced (`job`). A start removes what is named `.cleaned`.
2. They are renamed to `.swap`, and the folder is synced. From here on a start finishes the swap: it removes
   the old segments within the range of the new one and gives the new one its name.
3. In memory the new segment takes the place of the old ones. Readers that hold a slice of an old file keep
   it; no reader finds the old ones any more.
4. The old files are renamed to `.deleted`, and the folder is synced, so that no old segment can come back
   beside a new one whose `.swap` is gone.
5. The new files get their names, and the folder is synced.

Steps 2 and 4 block on the disk and may run in a thread. Steps 3 and 5 are quick and run where the log is used
(5 must: a reader may be about to open the file by its name), as does all that a `Swap` is asked to do there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ottla.storage.cleaning.job import CleanedSegment
from ottla.storage.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from ottla.storage.files import Disk
from ottla.storage.scan import walk
from ottla.storage.segment import Segment

logger = logging.getLogger(__name__)

# The log file last: as long as it is `.swap`, a start repeats the rest.
_NEW_FILES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)


class Row(Protocol):
    """A log, as far as a swap changes it."""

    folder: Path

    def replace_segments(self, replaced: Sequence[int], segment: Segment, truncations: int) -> bool: ...

    def delete_files(self, names: Sequence[str]) -> None: ...

    def new_segment(
        self, base_offset: int, size: int, suffix: str, *, has_aborted: bool = False
    ) -> Segment: ...


class Swap:
    """One new segment on its way into a log that had been cut `truncations` times when it was read.

    A step that failed can be repeated.
    """

    def __init__(self, disk: Disk, log: Row, cleaned: CleanedSegment, truncations: int) -> None:
        self._disk = disk
        self._log = log
        self._cleaned = cleaned
        self._truncations = truncations
        self._segment = log.new_segment(
            cleaned.base_offset, cleaned.size, SWAP_SUFFIX, has_aborted=cleaned.has_aborted
        )
        self._retired = False
        self._files = [
            suffix for suffix in _NEW_FILES if cleaned.has_aborted or suffix != TRANSACTION_INDEX_SUFFIX
        ]
        self._to_name = list(self._files)

    def promise(self) -> None:
        """Step 2. Blocks."""
        for suffix in self._files:
            self._rename(suffix, CLEANED_SUFFIX, SWAP_SUFFIX)
        self._disk.sync_folder(self._log.folder)

    def take_place(self) -> bool:
        """Step 3. False when the log has changed meanwhile: then the new segment is of no use."""
        return self._log.replace_segments(self._cleaned.replaces, self._segment, self._truncations)

    def retire_old(self) -> None:
        """Step 4. Blocks."""
        if self._retired:
            return
        # The producers as they were where the new segment begins are still of use.
        kept = file_name(self._cleaned.base_offset, SNAPSHOT_SUFFIX)
        old = [file_name(base, suffix) for base in self._cleaned.replaces for suffix in SUFFIXES]
        self._log.delete_files([name for name in old if name != kept])
        self._disk.sync_folder(self._log.folder)
        self._retired = True

    def take_name(self) -> None:
        """Step 5 without its sync."""
        while self._to_name:
            self._rename(self._to_name[0], SWAP_SUFFIX, "")
            del self._to_name[0]
        self._segment.renamed_to("")

    def settle(self) -> None:
        """The sync of step 5. Blocks."""
        self._disk.sync_folder(self._log.folder)

    def forget(self) -> None:
        """The new segment is not wanted: remove its files. Blocks."""
        remove_cleaned(self._disk, self._log.folder, self._cleaned.base_offset)

    def _rename(self, suffix: str, old: str, new: str) -> None:
        name = file_name(self._cleaned.base_offset, suffix)
        self._disk.rename(self._log.folder / (name + old), self._log.folder / (name + new))


def remove_cleaned(disk: Disk, folder: Path, base_offset: int) -> None:
    """Remove what a pass left for a segment that will not be swapped in."""
    for suffix in reversed(_NEW_FILES):  # first the log, without which the rest means nothing
        for stage in (SWAP_SUFFIX, CLEANED_SUFFIX):
            disk.remove(folder / (file_name(base_offset, suffix) + stage))


def finish_swaps(disk: Disk, folder: Path, names: set[str]) -> list[str]:
    """At a start: finish the swaps that a crash interrupted. Returns the names of files that were dealt with.

    A log file named `.swap` is whole, and holds what is left of all segments from its own to the last offset
    in it. Their indexes are removed with theirs: they are rebuilt from the log, which is rarely needed and
    always right. An index named `.swap` alone is what is left of a swap whose log has got its name already.

    A transaction index named `.swap` gets its name: no other one holds all that it says. Where there is none,
    the one that is there is the new one, or an old one that names transactions without records besides.
    """
    swaps = sorted(name for name in names if name.endswith(SWAP_SUFFIX))
    if not swaps:
        return []
    logger.info("%s: finishing a swap of cleaned segments that was interrupted", folder)
    dealt_with: list[str] = []

    def remove(name: str) -> None:
        if name in names:
            disk.remove(folder / name)
            dealt_with.append(name)

    for name in swaps:
        base = int(name.split(".", 1)[0])
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            remove(file_name(base, suffix))
            remove(file_name(base, suffix) + SWAP_SUFFIX)
        if name == file_name(base, TRANSACTION_INDEX_SUFFIX) + SWAP_SUFFIX:
            if file_name(base, LOG_SUFFIX) + CLEANED_SUFFIX in names:
                remove(name)  # the swap had not been promised
            else:
                disk.rename(folder / name, folder / name.removesuffix(SWAP_SUFFIX))
                dealt_with.append(name)
        if name != file_name(base, LOG_SUFFIX) + SWAP_SUFFIX:
            continue
        last_offset = base
        file = disk.open(folder / name)
        for _, header in walk(file, 0, file.size, base):
            last_offset = header.base_offset + header.last_offset_delta
        for old in sorted(each for each in names if each.endswith(LOG_SUFFIX) and each.count(".") == 1):
            if base < int(old.split(".", 1)[0]) <= last_offset:
                for suffix in SUFFIXES:
                    remove(old.removesuffix(LOG_SUFFIX) + suffix)
    if dealt_with:
        disk.sync_folder(folder)
    for name in swaps:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            disk.rename(folder / name, folder / name.removesuffix(SWAP_SUFFIX))
            dealt_with.append(name)
    disk.sync_folder(folder)
    return dealt_with
