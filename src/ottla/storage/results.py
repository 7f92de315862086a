"""What a log answers: the outcome of an append, a slice of a file, a record found by its time."""

from __future__ import annotations

from typing import NamedTuple

from ottla.storage.files import File


class FileSlice:
    """Part of a file on its way to a socket. Holds the file open as long as it lives."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path}, {self.position}, {self.length})"

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.length)


class NotInMemory(Exception):
    """To find an offset, this part of a file has to be read from the disk first.

    `gets_on`: the search is long, a part of it has been done, and the next one goes on from there.
    """

    def __init__(self, file: File, position: int, length: int, *, gets_on: bool = False) -> None:
        super().__init__(f"{file.path} from {position} on is not in memory")
        self.file = file
        self.position = position
        self.length = length
        self.gets_on = gets_on


class AppendInfo:
    """The outcome of an append."""

    __slots__ = ("append_time_ms", "duplicate", "first_offset", "last_offset", "log_start_offset", "size")

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        duplicate: bool,
        size: int,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.append_time_ms = append_time_ms  # -1 unless the log stamps its own time
        self.log_start_offset = log_start_offset
        self.duplicate = duplicate  # a retry: nothing was written, the offsets are those of the first time
        self.size = size

    def __repr__(self) -> str:
        return f"AppendInfo({self.first_offset}..{self.last_offset}{', duplicate' if self.duplicate else ''})"


class OffsetAndTime(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int
