"""Bytes of a stream in, whole frames out: the reading side of a connection, without I/O.

A frame is a size of four bytes and what it counts (`frames` says what is inside). The reader owns the memory:
its caller receives into `buffer()`, says how many bytes came with `received()`, and gets the frames that are
whole. Small frames are received into one shared buffer and copied out of it. A frame that does not fit there
gets memory of exactly its size, and only after its announced size was found to be allowed.
"""

from __future__ import annotations

from collections.abc import Iterator

SIZE_BYTES = 4
_SMALL = 64 * 1024


class FrameTooLarge(Exception):
    """The peer announced a frame that is larger than allowed, or speaks another protocol."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes was announced, {limit} are allowed")
        self.size = size


class FrameReader:
    """Its caller owns the frames it gets, and may keep them."""

    __slots__ = ("_end", "_large", "_limit", "_small")

    def __init__(self, limit: int) -> None:
        """`limit` is the largest frame, without its size, that is accepted."""
        self._limit = limit
        self._small = memoryview(bytearray(_SMALL))
        self._large: memoryview | None = None
        self._end = 0  # how much of the buffer in use is filled

    @property
    def memory(self) -> int:
        """Bytes held now."""
        return len(self._small) + (0 if self._large is None else len(self._large))

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        return (self._small if self._large is None else self._large)[self._end :]

    def received(self, count: int) -> Iterator[memoryview]:
        """The frames that `count` more bytes completed; to be exhausted before `buffer` is called again.

        FrameTooLarge when a frame is announced that is not allowed: then the stream is of no use any more.
        """
        self._end += count
        if self._large is not None:
            if self._end == len(self._large):
                frame, self._large, self._end = self._large, None, 0
                yield frame
            return
        small, position, end = self._small, 0, self._end
        while end - position >= SIZE_BYTES:
            start = position + SIZE_BYTES
            size = int.from_bytes(small[position:start], "big", signed=True)
            if not 0 <= size <= self._limit:
                raise FrameTooLarge(size, self._limit)
            if start + size > end:
                if size > len(small) - SIZE_BYTES:
                    large = memoryview(bytearray(size))
                    large[: end - start] = small[start:end]
                    self._large, self._end = large, end - start
                    return
                break
            position = start + size
            yield memoryview(bytes(small[start:position]))
        rest = end - position
        if position and rest:
            small[:rest] = bytes(small[position:end])
        self._end = rest
