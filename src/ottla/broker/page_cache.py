"""Parts of files that are about to be sent: are they in memory, and if not, have a thread read them.

`sendfile` of bytes that are not in the page cache waits for the disk, and with it the event loop and every
client. So a connection asks first (`is_cached`): a few bytes are read on condition that this needs no
waiting, at both ends of the part and in between, since the kernel reads and forgets in larger pieces. What is
not there is read by a thread of the `PageReader`, and the connection goes on when it is.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ottla.storage.files import File

_STEP = 1024 * 1024
"""Distance between two looks."""
_LOOK = bytearray(1)
_THREADS = 4
_CHUNK = 256 * 1024
_AHEAD = 64 * 1024
"""Read behind what was asked for: the next request looks for its batch there."""

Done = Callable[[OSError | None], None]


def is_cached(file: File, position: int, length: int) -> bool:
    """Whether this part of the file is in memory, as far as a few looks tell."""
    read, last = file.read_cached, position + length - 1
    while position < last:
        if not read(position, _LOOK):
            return False
        position += _STEP
    return bool(read(last, _LOOK))


class PageReader:
    """Threads that read files into the page cache. None is started before the first is needed."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self.reads = 0
        """How often a part of a file had to be waited for."""

    def read(self, loop: AbstractEventLoop, file: File, position: int, length: int, done: Done) -> None:
        """Have `done` called when the part is in memory, with the error when it cannot be read."""
        self.reads += 1
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ottla-read")

        def finished(outcome: Future[None]) -> None:
            if not outcome.cancelled():
                error = outcome.exception()
                if error is not None and not isinstance(error, OSError):
                    raise error
                done(error)

        loop.run_in_executor(self._threads, _read, file, position, length).add_done_callback(finished)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _read(file: File, position: int, length: int) -> None:
    buffer = memoryview(bytearray(min(_CHUNK, length + _AHEAD)))
    end = position + length + _AHEAD
    while position < end:
        count = file.read_into(position, buffer[: end - position])
        if count == 0:
            return
        position += count
