"""How many batches may wait for inspection per client address, and in which order they are inspected."""

from __future__ import annotations

import random
from typing import Any

from ottla.broker.backlog import LONGEST_HEAD_START, OVERHEAD, Backlog, due

MB = 1 << 20


def _fill(backlog: Backlog, address: str, size: int = MB - OVERHEAD, seconds: float = 0.0) -> int:
    count = 0
    while backlog.admit(address, size, seconds) is not None:
        count += 1
    return count


def test_each_address_may_use_half_of_the_free_space() -> None:
    backlog = Backlog(32 * MB)
    assert [_fill(backlog, address) for address in ("a", "b", "c")] == [16, 8, 4]
    assert backlog.size <= backlog.most_bytes


def test_estimated_work_is_bounded_like_bytes() -> None:
    backlog = Backlog(32 * MB, most_seconds=16.0)
    assert [_fill(backlog, address, 100, 0.5) for address in ("a", "b")] == [16, 8]


def test_the_number_of_tiny_batches_is_bounded() -> None:
    assert _fill(Backlog(MB), "a", size=61) < MB // OVERHEAD


def test_one_batch_at_a_time_may_exceed_the_bound() -> None:
    backlog = Backlog(4 * MB)
    first = backlog.admit("a", 100 * MB, 0.0)
    assert first is not None
    assert backlog.admit("a", 100, 0.0) is None
    assert backlog.admit("b", 100, 0.0) is None
    backlog.release(first)
    assert backlog.admit("b", 100 * MB, 0.0) is not None


def test_a_large_batch_enters_while_another_address_fills_its_share() -> None:
    backlog = Backlog(4 * MB)
    _fill(backlog, "a", size=1000)
    assert backlog.admit("b", 100 * MB, 0.0) is not None


def test_releasing_all_batches_resets_the_counters() -> None:
    backlog, rng = Backlog(4 * MB), random.Random(7)
    held: list[Any] = []
    for _ in range(2_000):
        if held and rng.random() < 0.5:
            backlog.release(held.pop(rng.randrange(len(held))))
        else:
            one = backlog.admit(rng.choice("abc"), rng.randrange(MB), rng.random() * 5)
            if one is not None:
                held.append(one)
    for one in held:
        backlog.release(one)
    assert (backlog.size, backlog.seconds) == (0, 0.0)
    assert _fill(backlog, "a") == 2


def test_a_small_batch_overtakes_a_large_one_by_one_second_at_most() -> None:
    assert due(10.0, 0.001) < due(9.9, 0.5)
    assert due(10.0, 1000.0) == 10.0 + LONGEST_HEAD_START
    assert due(11.1, 0.0) > due(10.0, 1000.0)


def test_an_endless_stream_of_small_batches_does_not_starve_a_large_one() -> None:
    waiting = [(due(0.0, 1000.0), "large")]
    now = 0.0
    served = ""
    while served != "large" and now < 60:
        waiting += [
            (due(now, 0.0001), "small"),
            (due(now, 0.0001), "small"),
        ]  # two come for each that is done
        served = waiting.pop(waiting.index(min(waiting)))[1]
        now += 0.1
    assert served == "large"
