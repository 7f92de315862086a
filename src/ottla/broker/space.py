"""The free-space mark: producing is refused, with words that help, before the disk is really full.

On a disk that is full to the last byte nothing can be written any more, not even what is needed to free
space. So below `log.dir.min.free.bytes` the broker takes no more records from producers, while reading,
committing offsets and deleting go on in the space that is left. Above it, below twice the mark, retention is
brought forward, and what was to be deleted later is deleted now. When there is space again, all goes on by
itself. In a cluster others lead meanwhile (`disk_reports`), and followers here take no records of their
leaders either, except for internal topics.

Asking the file system is cheap but not free, and appends are many: it is asked after so many bytes that they
could have used up a part of the space, when a producer was refused and a little time has passed, and now and
then by the maintenance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ottla.clock import Clock
from ottla.protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("ottla.space")

AUTOMATIC = -1
_AUTOMATIC_SHARE = 100  # one part in so many of the file system
_AUTOMATIC_MOST = 256 << 20
_LONGEST_STEP = 16 << 20  # bytes written between two looks
_SHORTEST_STEP = 64 << 10
_SHARE_OF_SPACE = 8
_LOOK_AGAIN = 0.25  # seconds after which a refused producer makes us look again


class Space:
    """`admit` is called before each append. `mark` 0 switches it all off.

    `space_of_disk` gives the bytes of the file system, in all and free; `setting` is
    `log.dir.min.free.bytes`; `free_space` is called when little is left.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        space_of_disk: Callable[[], tuple[int, int]],
        setting: Callable[[], int],
        free_space: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._space_of_disk = space_of_disk
        self._setting = setting
        self._free_space = free_space
        self.free = 0
        self.mark = 0
        self.is_short = False
        self.is_tight = False
        self.is_impaired = False
        """It was short of space, and has not gained enough since to stay out of that for a while."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `is_impaired` has changed."""
        self._budget = 0  # bytes that may be written before the next look
        self._looked_at = float("-inf")

    def admit(self, size: int) -> None:
        """Count `size` bytes of a producer, or refuse them."""
        self._budget -= size
        if self._budget < 0:
            if not self.is_short or self._clock.monotonic() - self._looked_at >= _LOOK_AGAIN:
                self.look()
            if self.is_short:
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"no records are taken: {self.free} bytes are free in {self._folder}, and "
                    f"{self.mark} are kept back (log.dir.min.free.bytes). It goes on by itself when there is "
                    "more space: delete topics, lower a retention or enlarge the disk",
                )

    def look(self) -> None:
        """Ask the file system, and say so when things have changed."""
        self._looked_at = self._clock.monotonic()
        try:
            total, self.free = self._space_of_disk()
        except OSError as problem:
            logger.warning("cannot tell how much space is free in %s: %s", self._folder, problem)
            self._budget = _LONGEST_STEP
            return
        wanted = self._setting()
        self.mark = min(total // _AUTOMATIC_SHARE, _AUTOMATIC_MOST) if wanted == AUTOMATIC else wanted
        usable = self.free - self.mark
        was_short, self.is_short = self.is_short, usable <= 0 and self.mark > 0
        self.is_tight = self.mark > 0 and self.free < 2 * self.mark
        was_impaired = self.is_impaired
        self.is_impaired = self.is_short or (was_impaired and 2 * self.free < 3 * self.mark)
        self._budget = min(max(usable // _SHARE_OF_SPACE, _SHORTEST_STEP), _LONGEST_STEP)
        if self.is_short:
            self._budget = 0
        if self.is_short and not was_short:
            logger.warning(
                "%s: %d bytes are free, less than log.dir.min.free.bytes=%d: producers are refused until "
                "there is more. Reading, committing and deleting go on. Delete a topic "
                "(`ottla topic delete`), lower retentions (`ottla topic alter`) or enlarge the disk",
                self._folder,
                self.free,
                self.mark,
            )
        elif was_short and not self.is_short:
            logger.warning("%s: %d bytes are free again, producers go on", self._folder, self.free)
        if self.is_impaired != was_impaired:
            self.changed()
        if self.is_tight:
            self._free_space()

    def free_above_mark(self) -> int | None:
        """What may be used now; None where nothing is kept back."""
        self.look()
        return self.free - self.mark if self.mark else None
