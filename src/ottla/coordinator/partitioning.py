"""Which partition of a coordinator's topic a key (the id of a group) belongs to.

The same as in Kafka, so that every broker and every tool finds the same coordinator: the hash of the key,
as Java computes it, over the number of partitions.
"""

from __future__ import annotations

from functools import lru_cache


def partition_of(key: str, partitions: int) -> int:
    """Java's hash of the key, made positive as Kafka does it, over the partitions."""
    value = _hash_of_short(key) if len(key) <= _SHORT_KEY else java_hash(key)
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number.

    It is a polynomial in 31, modulo 2^32, whose coefficients are the UTF-16 units. Keys can have 32,767
    characters, and a loop over them would take milliseconds. So all units are put into one large number, 64
    bits for each, and its upper half is multiplied and added to the lower one until one unit is left.
    """
    utf16 = text.encode("utf-16-be", "surrogatepass")
    units = len(utf16) // 2
    width = 1 << max(units - 1, 0).bit_length()
    spread = bytearray(8 * width)  # zeros in front change nothing
    first = 8 * (width - units)
    spread[first + 6 :: 8] = utf16[::2]
    spread[first + 7 :: 8] = utf16[1::2]
    value = int.from_bytes(spread, "big")
    while width > 1:
        width //= 2
        bits = 64 * width
        upper, lower = value >> bits, value & ((1 << bits) - 1)
        value = (upper * pow(31, width, 1 << 32) + lower) & int.from_bytes(_LOWER_32_OF_64 * width, "big")
    return value


_LOWER_32_OF_64 = bytes(4) + b"\xff" * 4
_SHORT_KEY = 250
"""Hashes of keys up to this length are cached; longer ones would make the cache large."""
_hash_of_short = lru_cache(maxsize=1_000)(java_hash)
