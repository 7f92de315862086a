"""The latest offset of each key of a part of a log, in a table of fixed size.

A Python dict of five million keys takes a gigabyte; this table takes 24 bytes a slot whatever the keys are:
16 for a hash of the key and 8 for the offset. It is an open-addressing table over two preallocated buffers,
with double hashing over a prime number of slots, so that it may become quite full before searches get long.
Two keys with the same 16-byte hash would be taken for one; with BLAKE2b that does not happen, not even
by intent.

Beside it stand two bits for each offset of the part: one is set while the record there is the latest of its
key, the other when a batch ends there that holds tombstones. With these most batches are judged without being
opened a second time.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

SLOT_SIZE = 24
_HASH_SIZE = 16
_SMALLEST = 61  # slots


class KeyMap:
    """For records at `start` and behind. `capacity` keys fit; callers must check `free_slots` first."""

    __slots__ = ("_ends", "_hashes", "_offsets", "_slots", "alive", "capacity", "end", "size", "start")

    def __init__(self, memory: int, load_factor: float, start: int) -> None:
        self._slots = _prime_below(max(memory // SLOT_SIZE, _SMALLEST))
        self._hashes = bytearray(self._slots * _HASH_SIZE)
        self._offsets = array("q", [0]) * self._slots  # one more than the offset; 0 is a free slot
        self.capacity = max(min(int(self._slots * load_factor), self._slots - 1), 1)
        self.start = start
        self.end = start  # the part that has been looked at ends here
        self.size = 0
        self.alive = bytearray()
        self._ends = bytearray()

    @property
    def free_slots(self) -> int:
        return self.capacity - self.size

    def extend(self, end: int) -> None:
        """Make bits for the offsets up to `end`."""
        wanted = (end - self.start + 7) // 8
        if wanted > len(self.alive):
            more = bytes(max(wanted, len(self.alive) * 2) - len(self.alive))
            self.alive.extend(more)
            self._ends.extend(more)

    def put(self, key: bytes, offset: int) -> None:
        """The record at `offset`, behind all that were put before, carries `key`."""
        digest = blake2b(key, digest_size=16).digest()
        mixed = hash(digest)
        slots = self._slots
        slot = mixed % slots
        step = 1 + (mixed >> 20) % (slots - 1)
        offsets = self._offsets
        hashes = self._hashes
        alive = self.alive
        while True:
            known = offsets[slot]
            if known == 0:
                hashes[slot * 16 : slot * 16 + 16] = digest
                self.size += 1
                break
            if hashes[slot * 16 : slot * 16 + 16] == digest:
                bit = known - 1 - self.start
                alive[bit >> 3] &= ~(1 << (bit & 7)) & 0xFF
                break
            slot = (slot + step) % slots
        offsets[slot] = offset + 1
        bit = offset - self.start
        alive[bit >> 3] |= 1 << (bit & 7)

    def latest(self, key: bytes) -> int:
        """The latest offset of `key` in the part, -1 when it is not in there."""
        digest = blake2b(key, digest_size=16).digest()
        mixed = hash(digest)
        slots = self._slots
        slot = mixed % slots
        step = 1 + (mixed >> 20) % (slots - 1)
        offsets = self._offsets
        hashes = self._hashes
        while True:
            known = offsets[slot]
            if known == 0:
                return -1
            if hashes[slot * 16 : slot * 16 + 16] == digest:
                return known - 1
            slot = (slot + step) % slots

    def note_tombstones(self, last_offset: int) -> None:
        """The batch that ends at `last_offset` holds tombstones."""
        bit = last_offset - self.start
        self._ends[bit >> 3] |= 1 << (bit & 7)

    def has_tombstones(self, last_offset: int) -> bool:
        bit = last_offset - self.start
        return bool(self._ends[bit >> 3] & (1 << (bit & 7)))

    def is_latest(self, offset: int) -> bool:
        """Whether the record at an offset of the part is the latest of its key."""
        bit = offset - self.start
        return bool(self.alive[bit >> 3] & (1 << (bit & 7)))

    def count_latest(self, first: int, last: int) -> int:
        """How many records from `first` to `last` are the latest of their keys."""
        low, high = first - self.start, last - self.start
        bits = int.from_bytes(self.alive[low >> 3 : (high >> 3) + 1], "little") >> (low & 7)
        return (bits & ((1 << (high - low + 1)) - 1)).bit_count()


def _prime_below(limit: int) -> int:
    """The largest prime that is not above `limit`."""
    candidate = limit | 1 if limit % 2 else limit - 1
    while any(candidate % divisor == 0 for divisor in range(3, int(candidate**0.5) + 1, 2)):
        candidate -= 2
    return candidate
