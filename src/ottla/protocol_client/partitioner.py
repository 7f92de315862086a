"""Which partition a record goes to.

A record with a key goes where every Kafka client sends that key: murmur2 of the key's bytes, made positive,
modulo the number of partitions. The hash is a promise between all writers of a topic (a Java service and a
shell script must agree where `user-42` lives), so it is Java's to the bit. A record without a key may go
anywhere; such records stay with one partition for a while, because one large batch costs less than many small
ones, and then move on to the next.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

STICKY_BYTES = 16_384
"""How much goes to one partition before records without a key move on; Kafka's own `batch.size`."""


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 of `data` as Java's clients compute it, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition that holds `key` in a topic of so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner:
    """Chooses a partition for each record: by its key, or in turn, `STICKY_BYTES` at a time.

    Records without a key go to `usable` partitions only (those with a leader); a record with a key belongs
    to its partition whether that has a leader at the moment or not.
    """

    def __init__(self, partition_count: int, usable: list[int] | None = None, start: int = 0) -> None:
        if partition_count < 1:
            raise ValueError("a topic has at least one partition")
        self.partition_count = partition_count
        self._usable = usable or list(range(partition_count))
        self._turn = start % len(self._usable)
        self._bytes = 0

    def choose(self, key: bytes | None, size: int) -> int:
        if key is not None:
            return partition_of(key, self.partition_count)
        if self._bytes >= STICKY_BYTES:
            self._bytes = 0
            self._turn = (self._turn + 1) % len(self._usable)
        self._bytes += size
        return self._usable[self._turn]
