"""The disk, as the log sees it: a small port and its real implementation.

The log never calls the operating system itself. It is given a `Disk`, so that a test can hand in one that
runs full, fails in the middle of a write or forgets what was never synced (`ottla.testing`).

Two rules of the port matter to everybody above it:

* A `File` is written and read at positions, never at a cursor. A write that failed half way is repeated at
  the same place and overwrites its own remains.
* The descriptor of a `File` is closed when the last reference to it goes. A slice that is still on its way
  to a slow consumer therefore survives the deletion of its segment and the eviction of its file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.storage.system_calls import KEEP_SIZE, fallocate, syncfs

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY_SUFFIX = ".tmp"
_SMALL = 4096
_LARGE = 1 << 20
_temporary_names = count(1)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)  # of Linux


class File(Protocol):
    """One open file."""

    path: Path

    @property
    def size(self) -> int: ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`, or raise OSError with any part of it written."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        """Fill `buffer` from `position` on; the number of bytes read."""

    def read_cached(self, position: int, buffer: bytearray | memoryview) -> int:
        """As `read_into`, but without waiting for the disk: fewer bytes when the rest is not in memory.

        Where the system cannot tell, this reads as `read_into` does.
        """

    def reserve(self, position: int, size: int) -> None:
        """Reserve space on the disk for bytes to come. The size stays; `truncate` gives back what is unused.

        OSError when there is no space, or on a disk that cannot do it.
        """

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when the bytes written so far would survive a loss of power."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock on a folder, held until released or until the process ends."""

    def release(self) -> None: ...


class LockHeld(Exception):
    """Another process holds the lock. `holder` is what that process wrote into the lock file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder or 'another process'}")
        self.path = path
        self.holder = holder


class Disk(Protocol):
    """What the log needs of a file system."""

    @property
    def has_latency(self) -> bool:
        """Whether a sync waits for a device, so that several threads together wait less."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """The file at `path`, for reading and writing. FileNotFoundError when it is not there."""

    def list(self, folder: Path) -> list[str]:
        """Names in `folder`, files and folders, in no order."""

    def sizes(self, folder: Path) -> dict[str, int]:
        """The names in `folder`, each with its size in bytes, which means nothing for a folder.

        FileNotFoundError or NotADirectoryError when there is no such folder.
        """

    def size(self, path: Path) -> int:
        """Size of a file in bytes. FileNotFoundError when it is not there."""

    def modified_ms(self, path: Path) -> int:
        """When a file was last written to. FileNotFoundError when it is not there."""

    def set_modified(self, path: Path, modified_ms: int) -> None:
        """Make a file look as if it was last written to then."""

    def is_folder(self, path: Path) -> bool: ...

    def make_folder(self, path: Path) -> None:
        """Make the folder and its parents; nothing happens when it is there."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` atomically."""

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens when it is not there."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with all that is in it; nothing happens when it is not there."""

    def sync_folder(self, folder: Path) -> None:
        """Return when names made, renamed and removed in `folder` would survive a loss of power."""

    def sync_all(self, folder: Path) -> None:
        """Return when all that was written to the file system of `folder` would survive a loss of power.

        OSError with ENOSYS where the system cannot do it, or does not tell when it fails.
        """

    def read(self, path: Path) -> bytes:
        """All of a small file. FileNotFoundError when it is not there."""

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Give a small file new content, so that a reader after a crash finds the old or the new, whole."""

    def lock(self, path: Path, holder: str) -> Lock:
        """Take the lock file at `path`; LockHeld when another process has it."""

    def boot_id(self) -> str:
        """Differs after the machine was off; empty when it cannot be told."""

    def space(self, folder: Path) -> tuple[int, int]:
        """Bytes of the file system that holds `folder`: in all, and still free."""


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = -1
        self.path = path
        self._fd = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        self.close()

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write_at(self, position: int, data: Buffer) -> None:
        written = os.pwrite(self._fd, data, position)
        rest = memoryview(data)
        if written < rest.nbytes:
            # A short write is how a disk that runs full begins; the next call says why.
            rest = rest.cast("B")
            while written < len(rest):
                more = os.pwrite(self._fd, rest[written:], position + written)
                if more == 0:
                    raise OSError(errno.EIO, "the disk took no more bytes and gave no reason", str(self.path))
                written += more

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        view = memoryview(buffer)
        done = 0
        while done < len(view):
            more = os.preadv(self._fd, [view[done:]], position + done)
            if more == 0:
                break
            done += more
        return done

    def read_cached(self, position: int, buffer: bytearray | memoryview) -> int:
        if not _NOWAIT:
            return self.read_into(position, buffer)
        try:
            return os.preadv(self._fd, [buffer], position, _NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return self.read_into(position, buffer)  # this file system cannot tell

    def reserve(self, position: int, size: int) -> None:
        fallocate()(self._fd, KEEP_SIZE, position, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealLock:
    """A lock file held with flock, so that it goes with the process however the process ends."""

    def __init__(self, path: Path, holder: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 200, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise LockHeld(path, owner) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, holder.encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing is not enough while a forked child has it open too
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """The file system of this machine."""

    has_latency = True

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        return RealFile(path, os.O_CREAT if create else 0)

    def list(self, folder: Path) -> list[str]:
        return os.listdir(folder)  # noqa: PTH208 - as below

    def sizes(self, folder: Path) -> dict[str, int]:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def size(self, path: Path) -> int:
        return os.stat(path).st_size  # noqa: PTH116 - as below

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified(self, path: Path, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def is_folder(self, path: Path) -> bool:
        return os.path.isdir(path)  # noqa: PTH112 - as below

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, folder: Path) -> None:
        sync = syncfs()
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync(fd)
        finally:
            os.close(fd)

    def read(self, path: Path) -> bytes:
        # A start looks at thousands of small files: the methods of `Path` take three times as long.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, _SMALL)
            if len(data) == _SMALL:
                parts = [data]
                while part := os.read(fd, _LARGE):
                    parts.append(part)
                data = b"".join(parts)
            return data
        finally:
            os.close(fd)

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        # A name of its own for each write: a flush may write beside the event loop.
        temporary = path.with_name(f"{path.name}.{next(_temporary_names)}{TEMPORARY_SUFFIX}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        if sync:
            self.sync_folder(path.parent)

    def lock(self, path: Path, holder: str) -> RealLock:
        return RealLock(path, holder)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def space(self, folder: Path) -> tuple[int, int]:
        usage = shutil.disk_usage(folder)
        return usage.total, usage.free
