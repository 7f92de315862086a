"""The request scheduler: requests run at once while there are few, and in slices of the loop under load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from ottla.broker.answer_sender import Parts
from ottla.broker.connection import Refused
from ottla.broker.request_scheduler import AT_ONCE, LARGEST, WINDOW, RequestScheduler
from ottla.completion import Completion
from ottla.testing.simulation.virtual_time import VirtualTime

COST = 0.0005


class Loop(VirtualTime):
    """Work takes virtual time, and a test runs iterations one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = RequestScheduler(self, self.time)
        self.done: list[int] = []
        self.answers: dict[int, object] = {}

    def work(self, number: int, cost: float = COST) -> Callable[[memoryview], Parts | Completion[Any] | None]:
        def work(frame: memoryview) -> Parts:
            self.spend(cost)
            self.done.append(number)
            return [bytes(frame)]

        return work

    def send(self, number: int, cost: float = COST) -> Parts | Completion[Any] | None:
        answer = self.scheduler.take(self.work(number, cost), memoryview(b"%d" % number))
        if isinstance(answer, Completion):
            given = partial(self.answers.__setitem__, number)
            answer.then(given, given)
        else:
            self.answers[number] = answer
        return answer

    def iterate(self, others: float = 0.0, arrived: Iterable[int] = ()) -> None:
        """One iteration: what was put off to it, what the sockets bring, then the timers."""
        self.spend(others)
        for number in arrived:
            self.call_soon(self.send, number)
        self.run_ready()


def test_few_requests_are_answered_at_once() -> None:
    loop = Loop()
    for number in range(20):
        assert loop.send(number) == [b"%d" % number]
        loop.spend(WINDOW)
    assert loop.is_idle


def test_under_load_requests_are_spread_over_loop_iterations_in_order() -> None:
    loop = Loop()
    for number in range(50):
        loop.send(number)
    at_once = len(loop.done)
    assert at_once == pytest.approx(AT_ONCE / COST, abs=1)
    turns = 0
    while len(loop.scheduler):
        before = len(loop.done)
        loop.iterate()
        turns += 1
        assert 0 < len(loop.done) - before <= AT_ONCE / COST + 1, "others have their turn again soon"
    assert turns > 5
    assert loop.done == list(range(50))
    assert loop.answers == {number: [b"%d" % number] for number in range(50)}


def test_a_new_request_is_queued_behind_all_waiting_requests() -> None:
    loop = Loop()
    for number in range(20):
        loop.send(number)
    loop.spend(WINDOW * 2)
    assert isinstance(loop.send(20), Completion)
    while len(loop.scheduler):
        loop.iterate()
    assert loop.done == list(range(21))


def test_the_scheduler_gets_half_of_the_loop_time_when_the_rest_is_busy() -> None:
    loop = Loop()
    for number in range(400):
        loop.send(number)
    loop.iterate(others=0.05)
    before = len(loop.done)
    loop.iterate(others=0.05)
    assert (len(loop.done) - before) * COST == pytest.approx(0.05, abs=2 * COST)


def test_a_frame_too_large_to_be_queued_is_handled_at_once() -> None:
    loop = Loop()
    for number in range(10):
        loop.send(number)
    assert len(loop.scheduler)
    large = memoryview(bytes(LARGEST + 1))
    assert loop.scheduler.take(lambda frame: [b"done"], large) == [b"done"]


def overload(loop: Loop) -> None:
    """Enough that the next one has to wait."""
    loop.send(-1, cost=2 * AT_ONCE)


def test_a_queued_frame_is_kept_when_its_buffer_is_reused() -> None:
    loop = Loop()
    overload(loop)
    memory = bytearray(b"mine")
    answer = loop.scheduler.take(loop.work(1), memoryview(memory))
    assert isinstance(answer, Completion)
    given: list[object] = []
    answer.then(given.append, given.append)
    memory[:] = b"else"
    loop.iterate()
    assert given == [[b"mine"]]


def test_the_delayed_response_of_a_queued_request_is_cancelled_on_disconnect() -> None:
    loop = Loop()
    overload(loop)
    cancelled: list[str] = []
    inner: dict[str, Completion[Any]] = {
        name: Completion(partial(cancelled.append, name)) for name in ("kept", "gone", "early")
    }
    outer = {name: loop.scheduler.take(lambda _, p=p: p, memoryview(b"")) for name, p in inner.items()}  # type: ignore[misc]
    given: dict[str, object] = {}
    for name, pending in outer.items():
        assert isinstance(pending, Completion)
        pending.then(partial(given.__setitem__, name), print)
    outer["early"].cancel()  # type: ignore[union-attr]
    assert cancelled == []
    loop.iterate()
    assert cancelled == ["early"], "it was gone when its turn came"
    outer["gone"].cancel()  # type: ignore[union-attr]
    assert cancelled == ["early", "gone"]
    for name in inner:
        inner[name].resolve(b"answer")
    assert given == {"kept": b"answer"}


def test_a_queued_request_is_handled_after_its_client_disconnected() -> None:
    loop = Loop()
    overload(loop)
    leaving = loop.send(1)
    assert isinstance(leaving, Completion)
    leaving.cancel()
    loop.iterate()
    assert loop.done == [-1, 1]
    assert 1 not in loop.answers


def test_exceptions_reach_the_connection_and_the_next_request_is_served() -> None:
    loop = Loop()
    overload(loop)

    def refuse(frame: memoryview) -> Parts:
        raise Refused("no request")

    def fail(frame: memoryview) -> Parts:
        raise ZeroDivisionError

    given: list[object] = []
    for work in (refuse, fail, loop.work(3)):
        answer = loop.scheduler.take(work, memoryview(b"3"))
        assert isinstance(answer, Completion)
        answer.then(given.append, given.append)
    loop.iterate()
    assert [type(each) for each in given] == [Refused, ZeroDivisionError, list]


def test_finish_serves_all_queued_requests_and_clear_drops_them() -> None:
    loop = Loop()
    for number in range(30):
        loop.send(number)
    loop.scheduler.finish()
    assert loop.done == list(range(30))
    loop.iterate()
    overload(loop)
    loop.send(31)
    loop.scheduler.clear()
    loop.iterate()
    assert 31 not in loop.done


def test_at_most_one_loop_callback_is_scheduled_at_a_time() -> None:
    loop = Loop()
    overload(loop)
    numbers = iter(range(100, 140))

    def next_request(_: object) -> None:
        for number in numbers:
            answer = loop.scheduler.take(loop.work(number), memoryview(b""))
            if isinstance(answer, Completion):
                answer.then(next_request, next_request)
                return

    next_request(None)
    while not loop.is_idle:
        assert loop.ready == 1
        loop.iterate()
    assert loop.done == [-1, *range(100, 140)]


def test_requests_sent_on_completion_do_not_extend_a_loop_iteration() -> None:
    loop = Loop()

    def ask_again(number: int) -> None:
        answer = loop.scheduler.take(loop.work(number), memoryview(b"again"))
        assert isinstance(answer, Completion)
        answer.then(lambda _: ask_again(number), lambda _: ask_again(number))

    for number in range(10):
        loop.send(number)
    for number in range(10):
        ask_again(number)
    for _ in range(50):
        before = loop.time()
        loop.iterate(others=2 * COST)
        assert loop.time() - before <= 2 * COST + 2 * AT_ONCE


def test_requests_that_arrived_before_a_timer_expired_run_before_it() -> None:
    loop = Loop()
    overload(loop)
    loop.scheduler.call_later(1.0, loop.done.append, 99)
    loop.iterate(others=2.0, arrived=range(40))  # the loop stood still: all this came meanwhile
    while not loop.is_idle:
        loop.iterate()
    assert loop.done == [-1, *range(40), 99]


def test_an_expired_timer_lets_the_loop_read_sockets_first() -> None:
    """asyncio may find a timer up without having looked at its sockets."""
    loop = Loop()
    loop.scheduler.call_later(1.0, loop.done.append, 99)
    loop.iterate(others=2.0)
    loop.iterate(arrived=range(40))
    while not loop.is_idle:
        loop.iterate()
    assert loop.done == [*range(40), 99]


def test_a_timer_can_be_cancelled_until_it_has_run() -> None:
    for turns in range(4):
        loop = Loop()
        timer = loop.scheduler.call_later(1.0, loop.done.append, 99)
        loop.spend(2.0)
        for number in range(turns):
            loop.iterate(arrived=range(10 * number, 10 * number + 10))
        timer.cancel()
        while not loop.is_idle or loop.next_timer() is not None:
            loop.iterate()
        assert 99 not in loop.done, turns


def test_requests_behind_a_timer_that_fails_are_served(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    overload(loop)

    def fail() -> None:
        raise ZeroDivisionError

    loop.scheduler.call_later(1.0, fail)
    loop.iterate(others=2.0, arrived=range(40))
    loop.iterate()
    loop.send(40)
    while not loop.is_idle:
        loop.iterate()
    assert loop.done == [-1, *range(41)]
    assert "a queued request or timer failed" in caplog.text
