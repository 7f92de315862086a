"""Topics created by Metadata are limited for each client address."""

from __future__ import annotations

from ottla.broker.creation_rate import CreationRate


def test_the_allowance_of_a_minute_can_be_used_at_once() -> None:
    rate = CreationRate()
    assert rate.take("a", 700, 1000, now=0.0) == 700
    assert rate.take("a", 700, 1000, now=0.0) == 300
    assert rate.take("a", 1, 1000, now=0.0) == 0
    assert rate.take("b", 1000, 1000, now=0.0) == 1000, "another address has its own"


def test_the_allowance_comes_back_evenly() -> None:
    rate = CreationRate()
    rate.take("a", 60, 60, now=0.0)
    assert rate.take("a", 60, 60, now=10.0) == 10
    assert rate.take("a", 1000, 60, now=1000.0) == 60


def test_the_allowance_of_failed_creations_is_returned() -> None:
    rate = CreationRate()
    rate.take("a", 10, 10, now=0.0)
    rate.give_back("a", 4, 10, now=0.0)
    assert rate.take("a", 10, 10, now=0.0) == 4
    rate.give_back("a", 100, 10, now=0.0)
    assert rate.take("a", 100, 10, now=0.0) == 10


def test_addresses_that_created_nothing_lately_are_forgotten() -> None:
    rate = CreationRate()
    for number in range(50_000):
        rate.take(str(number), 1, 60, now=float(number))
    assert len(rate._buckets) < 2_100
