"""The four compressions of a record batch, read without trusting a byte of them.

A batch names its codec in three bits of its attributes and holds all its records in one compressed block.
What is inside each block differs in ways that clients depend on:

    gzip    RFC 1952 members, usually one; several are read one after the other.
    snappy  the framing of the Java library (a magic of 16 bytes, then blocks of 32 KB, each with its length)
            or, from librdkafka and others, one raw snappy block without any framing. Both are read; the Java
            framing is written, since every client reads it.
    lz4     the LZ4 frame format. Java reads only frames whose blocks are independent, so such are written.
    zstd    the zstd frame format, with or without a declared content size.

A few bytes can claim to hold gigabytes. So `decompress` takes the largest size its caller is willing to hold
and never writes beyond it: declared sizes are only used to refuse early or to size a buffer, output goes to a
buffer of bounded size, and whatever is wrong with the input comes out as `CompressionError`.

Each gzip member and each snappy block costs some microseconds, however little it holds. Producers write one
member, and blocks of a kilobyte or more, so a batch of very many tiny ones is refused as unreadable. (In lz4
and zstd, frames are read by the library, which takes less than a microsecond for each.)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from mmap import mmap
from struct import Struct
from typing import Any

import cramjam

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The compression of a batch, numbered as in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name Kafka's configuration uses: none, gzip, snappy, lz4, zstd."""
        return self.name.lower()


class CompressionError(Exception):
    """The data is corrupt, or it holds more than the caller allows."""


class DecompressedTooLarge(CompressionError):
    """The data holds more than the caller allows."""


# The ranges Kafka allows for compression.<codec>.level, and what its brokers use when nothing is said.
LEVELS: dict[Codec, tuple[int, int]] = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
DEFAULT_LEVELS: dict[Codec, int] = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}

_GZIP_WINDOW = 31  # zlib's way to say: gzip header and trailer, 32 KB window
_GZIP_STEP = 16 * 1024

_MOST_MEMBERS = 256

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 * 1024
_MOST_SMALL_BLOCKS = 256  # beside one for each `_SMALL_BLOCK` bytes that the blocks hold
_SMALL_BLOCK = 512
_INT32 = Struct(">i")
# How much one byte of input can become at most. Deflate: a pair of codes of one bit each copies 258 bytes.
# The densest snappy element copies 64 bytes for 3 of input, the densest lz4 sequence 255 for one, the densest
# zstd block, of 4 bytes, repeats one byte 128 K times.
_GZIP_DENSITY = 1032
_SNAPPY_DENSITY = 22
_LZ4_DENSITY = 256
_ZSTD_DENSITY = 32 * 1024
DENSITIES = (1, _GZIP_DENSITY, _SNAPPY_DENSITY, _LZ4_DENSITY, _ZSTD_DENSITY)  # by the codec's number
_MAP_FROM = 1024 * 1024  # what may become larger than this is opened in a memory map
_STEP = 1024 * 1024


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as one compressed block of `codec`; `level` as in Kafka's compression.<codec>.level."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return zlib.compress(data, -1 if level is None else level, _GZIP_WINDOW)
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.LZ4:
        # Level 9 is Kafka's default and means its fast compressor; the other levels mean the dense one.
        fast = level is None or level == DEFAULT_LEVELS[Codec.LZ4]
        compressor = cramjam.lz4.Compressor(
            level=0 if fast else level, content_checksum=False, block_linked=False
        )
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec == Codec.ZSTD:
        return bytes(
            cramjam.zstd.compress(data, level=DEFAULT_LEVELS[Codec.ZSTD] if level is None else level)
        )
    raise CompressionError(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, max_size: int) -> bytes:
    """What `data` holds, if that is at most `max_size` bytes; `CompressionError` otherwise.

    Memory stays within a small multiple of what the input really holds and never passes `max_size` by more
    than a buffer, whatever the input declares.
    """
    if codec == Codec.NONE:
        if len(data) > max_size:
            raise _too_large(max_size)
        return bytes(data)
    if codec == Codec.GZIP:
        return _decompress_gzip(data, max_size)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_size)
    if codec == Codec.LZ4:
        return _decompress_growing(cramjam.lz4, data, max_size, len(data) * _LZ4_DENSITY)
    if codec == Codec.ZSTD:
        return _decompress_growing(cramjam.zstd, data, max_size, max_size)
    raise CompressionError(f"unknown compression codec {codec}")


def open_body(codec: int, data: Buffer, max_size: int) -> tuple[bytes | mmap, int]:
    """Like `decompress`, for a thread beside others: a buffer, and how many bytes of it are the data.

    What may be large is written into a memory map: there the system provides pages as they are written to,
    which happens without the interpreter's lock, where a `bytes` of 100 MB would be filled while all other
    threads stand still. It takes no more memory than the data, however much is set aside.
    """
    most = min(max_size, DENSITIES[codec] * len(data)) if 0 <= codec < len(DENSITIES) else 0
    if codec == Codec.NONE or most <= _MAP_FROM:
        body = decompress(codec, data, max_size)
        return body, len(body)
    mapped = mmap(-1, most + 1)  # one byte more tells "exactly full" from "there is more"
    try:
        with memoryview(mapped) as target:
            size = _decompress_to(codec, memoryview(data), target)
    except BaseException:
        mapped.close()
        raise
    if size > max_size:
        mapped.close()
        raise _too_large(max_size)
    return mapped, size


def _decompress_to(codec: int, data: memoryview, target: memoryview) -> int:
    """Decompress into `target`; the number of bytes, or at least the size of a `target` too small."""
    if codec == Codec.GZIP:
        return _gzip_to(data, target)
    if codec == Codec.SNAPPY:
        return _snappy_to(data, target)
    library = cramjam.lz4 if codec == Codec.LZ4 else cramjam.zstd
    try:
        return int(library.decompress_into(data, target))
    except (cramjam.DecompressionError, ValueError, OSError) as error:
        if str(error) == _output_full():
            return len(target)
        raise CompressionError(f"{Codec(codec).label}: {error}") from error


def _gzip_to(data: memoryview, target: memoryview) -> int:
    position = size = members = 0
    try:
        while position < len(data):
            members += 1
            _check_members(members)
            member = zlib.decompressobj(_GZIP_WINDOW)
            pending: Buffer = b""
            while not member.eof:
                if not pending:
                    pending = data[position : position + _GZIP_STEP]
                    if not pending:
                        raise CompressionError("gzip: the data is cut off")
                    position += len(pending)
                if size == len(target):
                    return size
                piece = member.decompress(pending, min(_STEP, len(target) - size))
                target[size : size + len(piece)] = piece
                size += len(piece)
                pending = member.unconsumed_tail
            position -= len(member.unused_data)
    except zlib.error as error:
        raise CompressionError(f"gzip: {error}") from error
    return size


def _snappy_to(data: memoryview, target: memoryview) -> int:
    size = 0
    for block, declared in _snappy_blocks(data):
        if size + declared > len(target):
            return len(target)
        _raw_snappy_to(block, target[size : size + declared])
        size += declared
    return size


def _too_large(max_size: int) -> CompressionError:
    return DecompressedTooLarge(f"the data holds more than the {max_size} bytes allowed")


def _decompress_gzip(data: Buffer, max_size: int) -> bytes:
    member = zlib.decompressobj(_GZIP_WINDOW)
    try:
        # One byte more than allowed tells "exactly full" from "there is more".
        first = member.decompress(data, max_size + 1)
        if len(first) > max_size:
            raise _too_large(max_size)
        if not member.eof:
            raise CompressionError("gzip: the data is cut off")
        if not member.unused_data:
            return first
        return _decompress_gzip_members(data, len(data) - len(member.unused_data), first, max_size)
    except zlib.error as error:
        raise CompressionError(f"gzip: {error}") from error


def _decompress_gzip_members(data: Buffer, position: int, first: bytes, max_size: int) -> bytes:
    """The rare case of several members.

    Fed in small steps: zlib copies what is left of its input at the end of each member, which for a megabyte
    of tiny members would be gigabytes if it were given all at once.
    """
    out = bytearray(first)
    view = memoryview(data)
    members = 1
    while position < len(view):
        members += 1
        _check_members(members)
        member = zlib.decompressobj(_GZIP_WINDOW)
        pending: Buffer = b""
        while not member.eof:
            if not pending:
                pending = view[position : position + _GZIP_STEP]
                if not pending:
                    raise CompressionError("gzip: the data is cut off")
                position += len(pending)
            out += member.decompress(pending, max_size + 1 - len(out))
            if len(out) > max_size:
                raise _too_large(max_size)
            pending = member.unconsumed_tail
        position -= len(member.unused_data)
    return bytes(out)


def _check_members(count: int) -> None:
    if count > _MOST_MEMBERS:
        raise CompressionError(f"gzip: more than {_MOST_MEMBERS} members in one batch")


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_size: int) -> bytes:
    out = bytearray()
    for block, declared in _snappy_blocks(memoryview(data)):
        if len(out) + declared > max_size:
            raise _too_large(max_size)
        opened = bytearray(declared)
        _raw_snappy_to(block, opened)
        out += opened
    return bytes(out)


def _snappy_blocks(view: memoryview) -> Iterator[tuple[memoryview, int]]:
    """The raw snappy blocks, those in the Java framing or the whole, each with the size it declares."""
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield view, _declared_snappy(view)
        return
    # The version fields behind the magic are not looked at: some writers have them in the wrong byte order.
    position, end = len(_XERIAL_HEADER), len(view)
    count = total = 0
    while position < end:
        if end - position < 4:
            raise CompressionError("snappy: the data is cut off")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if not 0 < size <= end - position:
            raise CompressionError(f"snappy: a block of {size} bytes where {end - position} are left")
        block = view[position : position + size]
        declared = _declared_snappy(block)
        count += 1
        total += declared
        if count > _MOST_SMALL_BLOCKS + total // _SMALL_BLOCK:
            raise CompressionError(f"snappy: {count} blocks for the first {total} bytes")
        yield block, declared
        position += size


def _declared_snappy(block: memoryview) -> int:
    """How many bytes a raw block says that it holds."""
    try:
        declared = int(cramjam.snappy.decompress_raw_len(block))
    except (cramjam.DecompressionError, ValueError, OSError) as error:
        raise CompressionError(f"snappy: {error}") from error
    if declared > len(block) * _SNAPPY_DENSITY:
        raise CompressionError(f"snappy: {len(block)} bytes cannot hold the {declared} they declare")
    return declared


def _raw_snappy_to(block: memoryview, out: bytearray | memoryview) -> None:
    """Decompress a raw block into memory of exactly its size."""
    if not len(out):
        return
    try:
        written = cramjam.snappy.decompress_raw_into(block, out)
    except (cramjam.DecompressionError, ValueError, OSError) as error:
        raise CompressionError(f"snappy: {error}") from error
    if written != len(out):
        raise CompressionError(f"snappy: {len(out)} bytes declared, {written} found")


def _decompress_growing(library: Any, data: Buffer, max_size: int, densest: int) -> bytes:
    """Decompress into buffers of growing size until one is large enough.

    Sizes grow fourfold, so the work thrown away is at most a third of the work done, and a small block never
    costs a large buffer.
    """
    size = min(max_size, densest, max(4 * len(data), 64 * 1024))
    while True:
        out = bytearray(size)
        try:
            written = library.decompress_into(data, out)
        except (cramjam.DecompressionError, ValueError, OSError) as error:
            if str(error) != _output_full():
                raise CompressionError(f"{library.__name__.rpartition('.')[2]}: {error}") from error
            if size >= max_size:
                raise _too_large(max_size) from error
            if size >= densest:
                raise CompressionError("lz4: more data than the input can hold") from error
            size = min(max_size, densest, 4 * size)
        else:
            del out[written:]
            return bytes(out)


_output_full_text = ""


def _output_full() -> str:
    """How the library says that the output buffer was too small.

    Found by asking it, so that a new wording in a later release cannot turn "larger buffer" into "corrupt".
    """
    global _output_full_text
    if not _output_full_text:
        try:
            cramjam.zstd.decompress_into(cramjam.zstd.compress(b"two"), bytearray(1))
        except cramjam.DecompressionError as error:
            _output_full_text = str(error)
    return _output_full_text
