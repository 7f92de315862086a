"""Which segment a damage was found in: only what holds several of them can tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.storage.scan import Damaged
from ottla.storage.stored_segment import StoredSegment


class DamagedSegment(Exception):
    """The segment file at `path` holds what no log would have written."""

    def __init__(self, path: Path, damage: Damaged) -> None:
        super().__init__(f"{path}: {damage}")
        self.path = path
        self.damage = damage


@contextmanager
def blaming(segment: StoredSegment) -> Iterator[None]:
    """Raise what is found damaged within as damage of `segment`."""
    try:
        yield
    except Damaged as damage:
        raise DamagedSegment(segment.path, damage) from damage
