"""The history of leaders: at which offset each leader epoch began.

Every leader of a partition has an epoch and stamps it into the batches it writes. This list remembers where
each epoch's first record stands. With it two replicas find the place where their logs part: "which offset
ends your epoch 5?" is answered from here, for followers that truncate and for consumers that check whether
what they read still exists. On disk it is Kafka's `leader-epoch-checkpoint`:

    0            format
    2            number of entries
    0 0          epoch, start offset
    3 1842
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class CorruptCheckpoint(Exception):
    """A checkpoint file that does not hold what it should."""


class LeaderEpochs:
    """Epochs and their start offsets, both rising. Pure state: the caller that changes it also writes it."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = [epoch for epoch, _ in entries or ()]
        self._starts: list[int] = [start for _, start in entries or ()]

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when none is known."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; True when that was news.

        Entries that contradict it (a later epoch, or an epoch said to start at or behind the offset) never
        wrote anything that is still in the log, and go.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}")
        if self._epochs and self._epochs[-1] == epoch and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and the offset where the next one begins.

        (-1, -1) when the answer is not known: no epoch was asked for, or one that lies in the future.
        """
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if self._epochs and self._epochs[-1] == epoch:
            return epoch, log_end
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if above == 0:
            # Older than all that is left of the log: its records are gone, the oldest we have come next.
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def epoch_for(self, offset: int) -> int:
        """The epoch under which the record at `offset` was written, -1 when not known."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else UNDEFINED_EPOCH

    def truncate_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or behind the end of the log; True when there were any."""
        keep = len(self._starts)
        while keep and self._starts[keep - 1] >= end_offset:
            keep -= 1
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before the log's start; the one around it now begins there."""
        slot = bisect_right(self._starts, start_offset)
        if slot == 0 or (slot == 1 and self._starts[0] == start_offset):
            return False
        del self._epochs[: slot - 1], self._starts[: slot - 1]
        self._starts[0] = start_offset
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()

    def encode(self) -> bytes:
        lines = ["0", str(len(self._epochs)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        try:
            version, count, *rest = data.decode().splitlines()
            pairs = [line.split() for line in rest if line]
            entries = [(int(epoch), int(start)) for epoch, start in pairs]
            if int(version) != 0 or int(count) != len(entries):
                raise CorruptCheckpoint(f"version {version}, {count} entries announced, {len(entries)} there")
        except (ValueError, UnicodeDecodeError) as problem:
            raise CorruptCheckpoint(str(problem)) from problem
        if any(epoch < 0 or start < 0 for epoch, start in entries) or any(
            epoch <= before or start <= begun for (before, begun), (epoch, start) in pairwise(entries)
        ):
            raise CorruptCheckpoint("epochs and offsets do not rise")
        return cls(entries)
