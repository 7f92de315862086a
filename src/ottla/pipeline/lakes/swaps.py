"""How many files of the lake become one, so that a crash loses nothing and doubles nothing.

A compaction (`compact.py`) writes its file where no reader sees it, then a note of the swap: "this file
stands for those". The note decides. The old files are removed, the new one is renamed into place, the note
goes. The next compaction, or the next start of a stage, that finds a note does again what it says:
every step may be done twice and by two at once.

The old go before the new one comes, so that no reader ever sees a row twice. For the moment in between, some
microseconds a file on a local disk, a reader that lists the folder misses the rows of that swap.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ottla.pipeline.lakes.layout import STAGED, SWAPS, LakePlace

NOTE = ".json"


@dataclass(frozen=True)
class Swap:
    """One new file in the place of several, all in one folder of the lake."""

    id: str
    folder: str
    new: str
    old: tuple[str, ...]

    @property
    def staged(self) -> str:
        return f"{SWAPS}/{self.id}{STAGED}"

    @property
    def note(self) -> str:
        return f"{SWAPS}/{self.id}{NOTE}"

    def path(self, name: str) -> str:
        """A file of the swap's folder, relative to the lake."""
        return f"{self.folder}/{name}" if self.folder else name


def decide(place: LakePlace, swap: Swap) -> None:
    """From here on the staged file stands for the old ones."""
    place.notes.write(swap.note, json.dumps(asdict(swap)).encode() + b"\n")


def carry_out(place: LakePlace, swap: Swap) -> None:
    """Does what was decided, or what is left of it."""
    place.lake.for_each(place.lake.remove, map(swap.path, swap.old))
    try:
        place.notes.move(swap.staged, swap.path(swap.new), place.lake)
    except FileNotFoundError:
        if not place.lake.exists(swap.path(swap.new)) and place.notes.exists(swap.note):
            raise  # not done by another process either: then it is really gone
    place.lake.sync(swap.folder)
    place.notes.remove(swap.note)


def finish_swaps(place: LakePlace) -> int:
    """Carries out every swap that was decided and not finished; returns how many."""
    finished = 0
    for entry in place.notes.list(SWAPS):
        if entry.name.endswith(NOTE):
            data = place.notes.read(f"{SWAPS}/{entry.name}")
            if data is not None:
                read = json.loads(data)
                carry_out(place, Swap(read["id"], read["folder"], read["new"], tuple(read["old"])))
                finished += 1
    return finished
