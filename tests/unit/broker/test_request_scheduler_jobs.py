"""Long jobs in the request scheduler: begun at once, continued in slices, never blocking other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from ottla.broker.connection import Refused
from ottla.broker.request_scheduler import (
    AT_ONCE,
    LARGEST,
    LONGEST_SLICE,
    OPEN_JOBS,
    SMALL,
    WINDOW,
    RequestScheduler,
    Steps,
)
from ottla.broker.watchdog import STALL_SECONDS, Watchdog
from ottla.completion import Completion
from ottla.log_lines import ClientLog, LineLimit
from unit.broker.test_request_scheduler import Loop

STEP = 0.001


class Work:
    """Steps that take a millisecond each."""

    def __init__(self, loop: Loop, steps: int, name: str = "job") -> None:
        self.loop = loop
        self.left = steps
        self.name = name
        self.closed = False

    def steps(self, frame: memoryview, before: Iterable[Any] = ()) -> Steps[Any]:
        try:
            yield from before
            while self.left:
                self.left -= 1
                self.loop.spend(STEP)
                yield
            return [self.name.encode()]
        finally:
            self.closed = True


def delivered(answer: Any) -> list[Any]:
    """What a pending answer will be."""
    assert isinstance(answer, Completion)
    given: list[Any] = []
    answer.then(given.append, given.append)
    return given


def test_a_short_job_is_answered_at_once() -> None:
    loop = Loop()
    assert loop.scheduler.take(Work(loop, 1).steps, memoryview(b"")) == [b"job"]
    assert loop.is_idle


def test_a_long_job_runs_in_bounded_slices() -> None:
    loop = Loop()
    work = Work(loop, 100)
    began = loop.time()
    given = delivered(loop.scheduler.take(work.steps, memoryview(b"")))
    assert loop.time() - began <= AT_ONCE + STEP
    turns = 0
    while not loop.is_idle:
        before = loop.time()
        loop.iterate()
        turns += 1
        assert loop.time() - before <= AT_ONCE + STEP
    assert given == [[b"job"]]
    assert turns >= 100 * STEP / (AT_ONCE + STEP) - 2


def test_small_requests_are_served_beside_a_job() -> None:
    loop = Loop()
    given = delivered(loop.scheduler.take(Work(loop, 1000).steps, memoryview(b"")))
    for number in range(20):
        loop.send(number)
    for _ in range(60):
        loop.iterate()
    assert loop.done == list(range(20))
    assert not given


def test_a_slice_is_bounded_even_after_the_loop_was_blocked() -> None:
    loop = Loop()
    delivered(loop.scheduler.take(Work(loop, 1000).steps, memoryview(b"")))
    loop.iterate()
    before = loop.time()
    loop.iterate(others=10.0)
    assert loop.time() - before - 10.0 <= LONGEST_SLICE + STEP


def test_the_number_of_started_jobs_is_limited() -> None:
    loop = Loop()
    jobs = [Work(loop, 50, str(number)) for number in range(OPEN_JOBS + 2)]
    frame = memoryview(bytes(SMALL + 1))
    answers = [delivered(loop.scheduler.take(job.steps, frame)) for job in jobs]
    assert [job.left for job in jobs[OPEN_JOBS:]] == [50, 50]
    while not loop.is_idle:
        loop.iterate()
    assert answers == [[[str(number).encode()]] for number in range(OPEN_JOBS + 2)]


def test_a_job_is_dropped_when_its_client_disconnects_and_the_next_starts() -> None:
    loop = Loop()
    jobs = [Work(loop, 50, str(number)) for number in range(OPEN_JOBS + 1)]
    frame = memoryview(bytes(SMALL + 1))
    pendings = []
    for job in jobs:
        pendings.append(loop.scheduler.take(job.steps, frame))
        loop.spend(WINDOW * 2)
    given = [delivered(pending) for pending in pendings]
    for pending in pendings[:-1]:
        assert isinstance(pending, Completion)
        pending.cancel()
    assert [job.closed for job in jobs] == [True] * OPEN_JOBS + [False]
    while not loop.is_idle:
        loop.iterate()
    assert given[:-1] == [[]] * OPEN_JOBS
    assert given[-1] == [[str(OPEN_JOBS).encode()]]


class Owner:
    """A request that has kept its frame."""

    address = "10.0.0.1"

    def __init__(self, work: Work) -> None:
        self.work = work
        self.released_with_left: list[int] = []

    def describe(self) -> str:
        return "a request"

    def release_frame(self) -> None:
        self.released_with_left.append(self.work.left)


@pytest.mark.parametrize("size", [SMALL, LARGEST + 1])
def test_a_job_that_must_finish_continues_after_a_disconnect(size: int) -> None:
    loop = Loop()
    work = Work(loop, 50)
    owner = Owner(work)
    frame = memoryview(bytes(size))
    pending = loop.scheduler.take(work.steps, frame, owner, kept=True, to_the_end=True)
    assert isinstance(pending, Completion)
    pending.cancel()
    assert not owner.released_with_left
    while not loop.is_idle:
        loop.iterate()
    assert work.left == 0
    assert owner.released_with_left == [0]


@pytest.mark.parametrize("begun", [True, False])
def test_the_frame_of_a_job_is_released_on_disconnect(begun: bool) -> None:
    loop = Loop()
    frame = memoryview(bytes(LARGEST + 1))
    if not begun:
        for _ in range(OPEN_JOBS):
            loop.scheduler.take(Work(loop, 50).steps, frame)
    work = Work(loop, 100)
    owner = Owner(work)
    answer = loop.scheduler.take(work.steps, frame, owner, kept=True)
    assert isinstance(answer, Completion)
    assert (work.left < 100) == begun
    assert not owner.released_with_left
    answer.cancel()
    assert owner.released_with_left == [work.left]


def test_the_frame_of_a_job_with_a_delayed_response_is_not_released_at_its_end() -> None:
    loop = Loop()
    work = Work(loop, 50)
    owner = Owner(work)
    later: Completion[Any] = Completion()

    def steps(frame: memoryview) -> Steps[Any]:
        yield from work.steps(frame)
        return later

    given = delivered(loop.scheduler.take(steps, memoryview(bytes(LARGEST + 1)), owner, kept=True))
    while not loop.is_idle:
        loop.iterate()
    assert not owner.released_with_left
    later.resolve([b"now"])
    assert given == [[b"now"]]


def test_a_queued_request_that_owns_its_frame_is_not_copied() -> None:
    loop = Loop()
    for _ in range(8):
        loop.scheduler.take(loop.work(-1, AT_ONCE / 4), memoryview(b""))
    memory = bytearray(b"mine")
    owner = Owner(Work(loop, 0))
    given = delivered(loop.scheduler.take(loop.work(1), memoryview(memory), owner, kept=True))
    memory[:] = b"same"
    while not loop.is_idle:
        loop.iterate()
    assert given == [[b"same"]]
    assert owner.released_with_left == [0]


def test_an_exception_in_a_job_reaches_the_connection() -> None:
    loop = Loop()

    def failing(error: Exception) -> Steps[Any]:
        loop.spend(2 * AT_ONCE)
        yield
        raise error

    refused = delivered(loop.scheduler.take(lambda _: failing(Refused("no")), memoryview(b"")))
    loop.spend(1)
    failed = delivered(loop.scheduler.take(lambda _: failing(ZeroDivisionError()), memoryview(b"")))
    while not loop.is_idle:
        loop.iterate()
    assert [type(each) for each in (*refused, *failed)] == [Refused, ZeroDivisionError]


def test_requests_behind_a_job_whose_answer_cannot_be_taken_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop()
    answer: Any = loop.scheduler.take(Work(loop, 5).steps, memoryview(b""))

    def broken(_: object) -> None:
        raise ZeroDivisionError

    answer.then(broken, broken)
    behind = delivered(loop.scheduler.take(Work(loop, 5).steps, memoryview(b"")))
    while not loop.is_idle:
        loop.iterate()
    assert behind == [[b"job"]]
    assert "the answer of a long request could not be sent" in caplog.text


def test_a_stopping_broker_abandons_a_job_that_takes_too_long() -> None:
    loop = Loop()
    short = delivered(loop.scheduler.take(Work(loop, 100).steps, memoryview(b"")))
    long = delivered(loop.scheduler.take(Work(loop, 100_000).steps, memoryview(b"")))
    loop.scheduler.finish()
    assert short == [[b"job"]]
    assert isinstance(long[0], Refused)


def test_a_coroutine_can_await_the_result_or_exception_of_a_job() -> None:
    async def main() -> None:
        scheduler = RequestScheduler(
            asyncio.get_running_loop(), iter(range(1_000_000)).__next__
        )  # each look costs a second

        def steps(error: Exception | None) -> Steps[int]:
            for _ in range(5):
                yield
            if error is not None:
                raise error
            return 7

        assert await scheduler.in_slices(steps(None)) == 7
        with pytest.raises(ZeroDivisionError):
            await scheduler.in_slices(steps(ZeroDivisionError()))

    asyncio.run(main())


class Named:
    address = "10.0.0.1"

    def describe(self) -> str:
        return "ListGroups v4, 30 bytes, of 10.0.0.1:5000 (me)"

    def release_frame(self) -> None:
        pass


def test_a_slice_that_blocks_the_loop_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    watchdog = Watchdog(loop, loop.time)
    scheduler = RequestScheduler(loop, loop.time, watchdog)

    def slow() -> Steps[None]:
        loop.spend(1.5 * STALL_SECONDS)
        yield
        loop.spend(3 * STALL_SECONDS)
        yield

    scheduler.take(lambda _: slow(), memoryview(b""), Named())
    while not loop.is_idle:
        loop.iterate()
    assert watchdog.counts.by_requests == 2
    assert watchdog.counts.longest == pytest.approx(3 * STALL_SECONDS)
    assert "stood still for 150 ms because of ListGroups v4, 30 bytes, of 10.0.0.1:5000 (me)" in caplog.text


def test_a_late_watchdog_tick_counts_a_stall_not_caused_by_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop()
    watchdog = Watchdog(loop, loop.time)
    watchdog.start()
    for _ in range(5):
        loop.iterate(others=0.1)
    assert watchdog.counts.by_others == 0
    loop.iterate(others=1.0)
    assert watchdog.counts.by_others == 1
    watchdog.request_took(2.0, None)
    loop.iterate(others=2.1)
    assert (watchdog.counts.by_requests, watchdog.counts.by_others) == (1, 1)
    assert watchdog.counts.longest == 2.0
    watchdog.stop()
    loop.iterate(others=5.0)
    assert watchdog.counts.by_others == 1


def test_stalls_of_one_client_are_all_counted_but_not_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    client_log = ClientLog(loop.time, limit=LineLimit(per_client=3))
    watchdog = Watchdog(loop, loop.time, lambda: client_log)
    for _ in range(50):
        watchdog.request_took(0.2, Named())
        loop.spend(0.1)
    assert watchdog.counts.by_requests == 50
    assert caplog.text.count("because of ListGroups") == 3
    client_log.close()
    assert "and 47 more lines about 10.0.0.1" in caplog.text


def test_stalls_that_no_client_caused_are_not_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    client_log = ClientLog(loop.time, limit=LineLimit(per_client=3, window=60.0))
    watchdog = Watchdog(loop, loop.time, lambda: client_log)
    watchdog.start()
    for _ in range(20):
        loop.iterate(others=1.0)
    assert watchdog.counts.by_others == 20
    assert caplog.text.count("not because of a single request") == 3
