"""Which partition each row of a column goes to: Kafka's murmur2 over a whole column of keys at once.

`protocol_client/partitioner.py` has the rule and hashes one key in about a microsecond; a Spark task has
millions. Here word after word of all keys is mixed in with Arrow's kernels, some twenty operations on a
column for every four bytes of the longest key. Very long keys, which are rare, go the slow way.

Rows without a key and without a wish of their own go where the writer is at the moment: `Sticky` stays with
a partition for a batch's worth of bytes and moves on to the next, because one large batch costs a broker less
than many small ones.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.protocol_client.partitioner import murmur2 as murmur2_of_one

__all__ = ["Sticky", "murmur2", "partitions_by_key"]

Array = Any

LONGEST_IN_COLUMNS = 256
"""Keys up to this length are hashed as a column; each four bytes cost the whole column a pass."""

_SEED, _M = pa.scalar(0x9747B28C, pa.uint32()), pa.scalar(0x5BD1E995, pa.uint32())
_R = {n: pa.scalar(n, pa.uint32()) for n in (13, 15, 24)}
_BYTES = [pa.scalar(n, pa.int64()) for n in range(4)]
_FOUR = pa.scalar(4, pa.int64())
_POSITIVE = pa.scalar(0x7FFFFFFF, pa.uint32())


def partitions_by_key(keys: Array, partition_count: int) -> Array:
    """The partition of each key as int32; null where the key is null."""
    positive = pc.bit_wise_and(murmur2(keys), _POSITIVE)
    count = pa.scalar(partition_count, pa.uint32())
    whole = pc.multiply(pc.divide(positive, count), count)
    return pc.subtract(positive, whole).cast(pa.int32())


def murmur2(keys: Array) -> Array:
    """Java's murmur2 of each key of a binary array, as uint32; null where the key is null."""
    nothing = pa.scalar(None, pa.uint32())
    sizes = pc.fill_null(pc.binary_length(keys), 0).cast(pa.int64())
    longest = pc.max(sizes).as_py() or 0
    if longest > LONGEST_IN_COLUMNS:
        long = pc.greater(sizes, pa.scalar(LONGEST_IN_COLUMNS, pa.int64()))
        hashes = murmur2(pc.if_else(long, pa.scalar(None, pa.binary()), keys))
        slow = [murmur2_of_one(key) for key in keys.filter(long).to_pylist()]
        return pc.replace_with_mask(hashes, long, pa.array(slow, pa.uint32()))
    hashed = pc.bit_wise_xor(_SEED, sizes.cast(pa.uint32()))
    data = keys.buffers()[2]
    if longest and data is not None:
        raw = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
        starts = pa.Array.from_buffers(
            pa.int32(), len(keys), [None, keys.buffers()[1]], offset=keys.offset
        ).cast(pa.int64())
        hashed = _mix(hashed, raw, starts, sizes, longest)
    hashed = pc.multiply(pc.bit_wise_xor(hashed, pc.shift_right(hashed, _R[13])), _M)
    hashed = pc.bit_wise_xor(hashed, pc.shift_right(hashed, _R[15]))
    return pc.if_else(keys.is_null(), nothing, hashed) if keys.null_count else hashed


def _mix(hashed: Array, raw: Array, starts: Array, sizes: Array, longest: int) -> Array:
    last = pa.scalar(len(raw) - 1, pa.int64())
    left = sizes
    """Bytes of each key that are not mixed in yet."""
    position = starts
    for _ in range(longest // 4):
        word = _word(raw, position, last, 4)
        k = pc.multiply(word, _M)
        k = pc.multiply(pc.bit_wise_xor(k, pc.shift_right(k, _R[24])), _M)
        mixed = pc.bit_wise_xor(pc.multiply(hashed, _M), k)
        whole = pc.greater_equal(left, _FOUR)
        hashed = pc.if_else(whole, mixed, hashed)
        position = pc.if_else(whole, pc.add(position, _FOUR), position)
        left = pc.if_else(whole, pc.subtract(left, _FOUR), left)
    for tail in (1, 2, 3):
        ends = pc.equal(left, _BYTES[tail])
        if pc.any(ends).as_py():
            mixed = pc.multiply(pc.bit_wise_xor(hashed, _word(raw, position, last, tail)), _M)
            hashed = pc.if_else(ends, mixed, hashed)
    return hashed


def _word(raw: Array, position: Array, last: Any, count: int) -> Array:
    """The next `count` bytes of each key as a little-endian number. Rows with fewer left get some number."""
    word: Array = None
    for number in range(count):
        place = pc.min_element_wise(pc.add(position, _BYTES[number]), last)
        byte = pc.array_take(raw, place, boundscheck=False).cast(pa.uint32())
        if number:
            byte = pc.shift_left(byte, pa.scalar(8 * number, pa.uint32()))
            word = pc.bit_wise_or(word, byte)
        else:
            word = byte
    return word


class Sticky:
    """Gives rows without a key to one partition after the other, `stretch` bytes at a time."""

    def __init__(self, partitions: Sequence[int], stretch: int) -> None:
        # Many tasks start at once: were they all to start with the first partition, it would be a hot one.
        self._partitions = list(partitions)
        self._turn = random.randrange(len(self._partitions))
        self._stretch = stretch
        self._used = 0

    def choose(self, totals: Sequence[int] | memoryview) -> list[tuple[int, int]]:
        """(partition, number of rows) for rows with running `totals` of their sizes."""
        chosen: list[tuple[int, int]] = []
        row, before = 0, 0
        while row < len(totals):
            end = min(bisect_left(totals, before + self._stretch - self._used, row) + 1, len(totals))
            chosen.append((self._partitions[self._turn], end - row))
            self._used += totals[end - 1] - before
            row, before = end, totals[end - 1]
            if self._used >= self._stretch:
                self._used = 0
                self._turn = (self._turn + 1) % len(self._partitions)
        return chosen
