"""Which brokers are alive, and when a controller resigns because it hears from too few."""

from __future__ import annotations

import pytest

from ottla.cluster.liveness import Liveness


def liveness(*others: int, now: float = 0.0) -> Liveness:
    """Of broker 1, with a session timeout of 9 s, at the start of a term."""
    made = Liveness(1, 9.0)
    made.begin({broker: 100 + broker for broker in (1, *others)}, now)
    return made


def test_brokers_of_a_new_term_have_the_length_of_a_session_to_find_the_controller() -> None:
    term = liveness(2)
    assert not term.is_fenced(2, 8.9)
    assert term.next_deadline(0.0) == pytest.approx(9.0, abs=0.01)
    assert term.is_fenced(2, 9.0)
    assert term.next_deadline(9.0) is None


def test_a_broker_that_asks_is_not_fenced() -> None:
    term = liveness(2)
    assert not term.polled(2, 102, 0, now=8.0), "it was not fenced"
    assert not term.is_fenced(2, 16.9)
    assert term.is_fenced(2, 17.0)
    assert term.polled(2, 102, 0, now=20.0)
    assert not term.is_fenced(2, 20.0)


def test_a_broker_of_an_earlier_epoch_is_not_heard() -> None:
    term = liveness(2)
    assert not term.polled(2, 99, 0, now=8.0)
    assert not term.polled(7, 1, 0, now=8.0)
    assert term.is_fenced(2, 9.0) and term.is_fenced(7, 9.0)


def test_a_new_broker_is_fenced_until_it_has_an_image_that_shows_it() -> None:
    term = liveness()
    term.registered(2, 110, now=1.0)
    assert term.is_fenced(2, 1.0)
    assert not term.polled(2, 110, 50, now=1.1), "the image does not show it yet"
    term.shown(2, 51)
    assert not term.polled(2, 110, 50, now=1.2)
    assert term.polled(2, 110, 51, now=1.3)
    assert not term.is_fenced(2, 1.3)


def test_the_controllers_own_broker_is_never_fenced() -> None:
    term = liveness()
    assert not term.is_fenced(1, 1_000.0)
    term.registered(1, 200, now=0.0)
    assert not term.is_fenced(1, 1_000.0)


def test_a_broker_that_left_is_fenced() -> None:
    term = liveness(2)
    term.left(2)
    assert term.is_fenced(2, 0.0) and term.epoch(2) is None


@pytest.mark.parametrize(
    ("others", "heard", "resigns"),
    [
        ((), (), False),
        ((2,), (), False),
        ((2, 3), (2,), False),
        ((2, 3), (), True),
        ((2, 3, 4), (2,), False),
        ((2, 3, 4), (), True),
        ((2, 3, 4, 5), (2,), True),
        ((2, 3, 4, 5), (2, 3), False),
    ],
)
def test_a_controller_resigns_when_most_of_three_or_more_are_silent(
    others: tuple[int, ...], heard: tuple[int, ...], resigns: bool
) -> None:
    term = liveness(*others)
    assert not term.should_resign(8.9)
    for broker in heard:
        term.polled(broker, 100 + broker, 0, now=7.0)
    assert term.should_resign(9.0) is resigns


def test_a_controller_resigns_before_it_fences_the_first_of_most() -> None:
    term = liveness(2, 3)
    term.polled(2, 102, 0, now=1.0)
    term.polled(3, 103, 0, now=2.9)
    assert not term.should_resign(9.9)
    assert term.should_resign(10.0) and not term.is_fenced(3, 10.0)


def test_a_controller_that_nobody_replaces_does_not_resign_for_the_same_silence() -> None:
    term = liveness(2, 3)
    assert term.should_resign(9.0)
    term.resigned()
    term.begin({1: 101, 2: 102, 3: 103}, now=14.0)
    assert not term.should_resign(23.0)
    assert term.is_fenced(2, 23.0) and term.is_fenced(3, 23.0)
    term.polled(2, 102, 0, now=24.0)
    assert not term.should_resign(25.0)
    assert term.should_resign(40.0), "it had heard from most meanwhile"
