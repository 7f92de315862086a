"""Delayed operations leave once, in time, and only when something happened."""

from collections.abc import Callable
from typing import Any

from ottla.completion import Completion
from ottla.replication.purgatory import Purgatory
from ottla.testing.simulation.virtual_time import VirtualTime


def enter(
    purgatory: Purgatory,
    keys: list[str],
    ready: Callable[[], bool],
    done: Callable[[bool], object],
    timeout: float,
    failed: Callable[[Exception], object] = print,
) -> Completion[bool]:
    operation = purgatory.enter(keys, ready, timeout)
    operation.then(done, failed)
    return operation


def test_an_operation_leaves_when_a_notified_key_makes_it_ready() -> None:
    scheduler, level = VirtualTime(), 0
    done: list[Any] = []
    purgatory = Purgatory(scheduler)
    enter(purgatory, ["a", "b"], lambda: level >= 2, done.append, timeout=1)
    level = 1
    purgatory.notify("a")
    scheduler.run_ready()
    assert done == []
    level = 2
    purgatory.notify("b")
    assert done == [], "the check is put off to the next iteration"
    scheduler.run_ready()
    assert done == [False]
    scheduler.advance(5)
    assert done == [False]
    assert len(purgatory) == 0


def test_an_operation_expires_at_its_deadline() -> None:
    scheduler = VirtualTime()
    done: list[Any] = []
    purgatory = Purgatory(scheduler)
    enter(purgatory, ["a"], lambda: False, done.append, timeout=1)
    scheduler.advance(0.9)
    assert done == []
    scheduler.advance(0.2)
    assert done == [True]
    purgatory.notify("a")
    scheduler.run_ready()
    assert done == [True]


def test_a_burst_of_notices_causes_one_check() -> None:
    scheduler = VirtualTime()
    asked: list[int] = []
    purgatory = Purgatory(scheduler)

    def is_ready() -> bool:
        asked.append(1)
        return False

    enter(purgatory, ["a"], is_ready, lambda expired: None, timeout=1)
    for _ in range(10):
        purgatory.notify("a")
    scheduler.run_ready()
    assert len(asked) == 1


def test_a_notice_that_no_operation_waits_for_schedules_nothing() -> None:
    scheduler = VirtualTime()
    Purgatory(scheduler).notify("a")
    assert scheduler.is_idle


def test_a_cancelled_operation_has_no_outcome() -> None:
    scheduler = VirtualTime()
    done: list[Any] = []
    purgatory = Purgatory(scheduler)
    wait = enter(purgatory, ["a"], lambda: True, done.append, timeout=1)
    purgatory.notify("a")
    wait.cancel()
    scheduler.run_ready()
    scheduler.advance(2)
    assert done == []
    assert len(purgatory) == 0


def test_all_operations_expire_when_the_broker_stops() -> None:
    scheduler = VirtualTime()
    done: list[Any] = []
    purgatory = Purgatory(scheduler)
    for key in "abc":
        enter(purgatory, [key, "shared"], lambda: False, done.append, timeout=9)
    purgatory.expire_all()
    assert done == [True] * 3
    assert len(purgatory) == 0


def test_an_operation_that_fails_does_not_keep_others_from_being_checked() -> None:
    scheduler = VirtualTime()
    done: list[Any] = []
    failed: list[Any] = []
    purgatory = Purgatory(scheduler)

    def defect(*_: object) -> bool:
        raise RuntimeError("a defect")

    enter(purgatory, ["a"], defect, done.append, timeout=1, failed=failed.append)
    enter(purgatory, ["a"], lambda: True, defect, timeout=1)
    enter(purgatory, ["a"], lambda: True, done.append, timeout=1)
    purgatory.notify("a")
    scheduler.run_ready()
    assert (done, [str(error) for error in failed], len(purgatory)) == ([False], ["a defect"], 0)


def test_an_operation_that_another_one_cancelled_has_no_outcome() -> None:
    scheduler = VirtualTime()
    done: list[Any] = []
    purgatory = Purgatory(scheduler)
    enter(purgatory, ["a"], lambda: True, lambda expired: second.cancel(), timeout=1)
    second = enter(purgatory, ["a"], lambda: True, done.append, timeout=1)
    purgatory.notify("a")
    scheduler.run_ready()
    assert done == []


def test_an_operation_with_many_keys_is_checked_once_and_gets_the_keys_that_changed() -> None:
    scheduler = VirtualTime()
    purgatory = Purgatory(scheduler)
    asked: list[str] = []
    noticed: list[object] = []

    def ready() -> bool:
        asked.append("once")
        return False

    purgatory.enter([f"key-{n}" for n in range(1_000)] * 2, ready, 1, noticed.append)
    for number in range(500):
        purgatory.notify(f"key-{number}")
    scheduler.run_ready()
    assert asked == ["once"]
    assert noticed == [f"key-{n}" for n in range(500)]


def test_many_operations_of_one_key_are_checked_over_several_iterations_in_order() -> None:
    scheduler = VirtualTime()
    purgatory = Purgatory(scheduler)
    left: list[int] = []
    for number in range(1_000):
        enter(purgatory, ["a"], lambda: True, lambda _, number=number: left.append(number), timeout=1)  # type: ignore[misc]
    purgatory.notify("a")
    while not scheduler.is_idle:
        before = len(left)
        scheduler.run_ready()
        assert len(left) - before <= 100, "others have their turn"
    assert left == list(range(1_000))


def test_an_operation_that_enters_while_many_are_checked_is_checked_too() -> None:
    scheduler = VirtualTime()
    purgatory = Purgatory(scheduler)
    left: list[str] = []
    for _ in range(200):
        enter(purgatory, ["a"], lambda: True, lambda _: left.append("first"), timeout=1)
    purgatory.notify("a")
    scheduler.run_ready()
    enter(purgatory, ["a"], lambda: True, lambda _: left.append("second"), timeout=1)
    purgatory.notify("a")
    while not scheduler.is_idle:
        scheduler.run_ready()
    assert left == ["first"] * 200 + ["second"]
    assert len(purgatory) == 0
