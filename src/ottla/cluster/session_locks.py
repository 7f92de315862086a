"""Which sessions of this machine are alive: one locked file per session.

A session holds an advisory lock (`flock`) on a file of its own. The kernel releases it the moment the
process dies, however it dies, so that the other processes notice a `kill -9` at their next look instead
of waiting for a lease to run out. The lock says only "surely dead": a process that hangs keeps its lock, and
it is the lease that ends its session (`sqlite_registry`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class SessionLocks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, int] = {}

    def hold(self, session: int) -> None:
        """Taken before the session becomes visible, so that no process finds it without its lock."""
        self._folder.mkdir(exist_ok=True)
        fd = os.open(self._path(session), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self._held[session] = fd

    def is_dead(self, session: int) -> bool:
        """True when the holder of this session's lock is surely gone.

        A missing file proves nothing (it may have been deleted by hand); then the lease decides.
        """
        if session in self._held:
            return False
        try:
            fd = os.open(self._path(session), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def release(self, session: int) -> None:
        """Lets go of a lock of ours; what a dying process leaves to the kernel."""
        fd = self._held.pop(session, None)
        if fd is not None:
            os.close(fd)

    def forget(self, session: int) -> None:
        """Removes what an ended session left behind."""
        self.release(session)
        self._path(session).unlink(missing_ok=True)

    def close(self) -> None:
        for session in list(self._held):
            self.release(session)
        with contextlib.suppress(OSError):  # other processes still have their files in it
            self._folder.rmdir()

    def _path(self, session: int) -> Path:
        return self._folder / f"{session}.lock"
