"""A broker looks whether it is fenced before it answers, and tells its parts when that changes."""

from __future__ import annotations

from ottla.broker.fencing import Fencing
from ottla.clock import ManualClock


class Watched:
    """Fencing of a broker that may or may not have been replaced."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.replaced = False
        self.changes = 0
        self.fencing = Fencing(lambda: self.replaced, self.clock.monotonic, self._changed)

    def _changed(self) -> None:
        self.changes += 1


def test_a_broker_that_stood_still_is_fenced_at_the_first_look() -> None:
    watched = Watched()
    assert not watched.fencing.is_fenced()
    watched.clock.advance(60_000)
    watched.replaced = True
    assert watched.fencing.is_fenced()
    watched.replaced = False
    assert not watched.fencing.is_fenced()


def test_a_look_counts_for_a_moment_only() -> None:
    watched = Watched()
    assert not watched.fencing.is_fenced()
    watched.replaced = True
    watched.clock.advance(100)
    assert watched.fencing.is_fenced()


def test_the_parts_of_the_broker_are_told_once_of_each_change() -> None:
    watched = Watched()
    for replaced, changes in [(False, 0), (True, 1), (True, 1), (False, 2), (False, 2)]:
        watched.clock.advance(1000)
        watched.replaced = replaced
        watched.fencing.look()
        assert watched.changes == changes


def test_parts_that_have_ended_are_held_back_until_they_are_told_to_begin_again() -> None:
    watched = Watched()
    held_back = []
    for replaced in (True, False):
        watched.clock.advance(1000)
        watched.replaced = replaced
        held_back.append(watched.fencing.holds_back())
        watched.fencing.look()
        held_back.append(watched.fencing.holds_back())
    assert held_back == [True, True, True, False]
