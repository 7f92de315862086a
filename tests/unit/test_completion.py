"""A completion has one outcome, delivers it at once, and passes a cancellation back to the work."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from ottla.completion import Completion, run_coroutine


class Consumer:
    def __init__(self, completion: Completion[Any]) -> None:
        self.results: list[Any] = []
        self.errors: list[Exception] = []
        completion.then(self.results.append, self.errors.append)


def test_the_consumer_gets_the_result_before_resolve_returns() -> None:
    completion: Completion[int] = Completion()
    consumer = Consumer(completion)
    assert completion.is_open
    completion.resolve(7)
    assert (consumer.results, consumer.errors, completion.is_open) == ([7], [], False)


def test_a_consumer_that_is_added_later_gets_the_outcome_at_once() -> None:
    resolved: Completion[int] = Completion()
    resolved.resolve(7)
    failed: Completion[int] = Completion()
    failed.fail(KeyError("x"))
    assert Consumer(resolved).results == [7]
    assert [type(error) for error in Consumer(failed).errors] == [KeyError]


def test_only_the_first_outcome_counts() -> None:
    completion: Completion[int] = Completion()
    consumer = Consumer(completion)
    completion.resolve(1)
    completion.resolve(2)
    completion.fail(KeyError())
    completion.cancel()
    assert (consumer.results, consumer.errors, completion.cancelled) == ([1], [], False)


def test_a_cancelled_completion_lets_the_work_clean_up_once_and_delivers_nothing() -> None:
    cancelled: list[bool] = []
    completion: Completion[int] = Completion(lambda: cancelled.append(True))
    consumer = Consumer(completion)
    completion.cancel()
    completion.cancel()
    completion.resolve(1)
    assert (cancelled, consumer.results, consumer.errors) == ([True], [], [])


def test_mapping_changes_results_and_errors() -> None:
    source: Completion[int] = Completion()
    consumer = Consumer(source.map(lambda n: n + 1).map(str))
    source.resolve(1)
    assert consumer.results == ["2"]

    def recover(error: Exception) -> int:
        assert isinstance(error, KeyError)
        return -1

    failing: Completion[int] = Completion()
    recovered = Consumer(failing.map(lambda n: n, recover))
    failing.fail(KeyError())
    assert recovered.results == [-1]


def test_an_exception_while_mapping_is_an_error_of_the_mapped_completion() -> None:
    source: Completion[int] = Completion()
    consumer = Consumer(source.map(lambda n: n // 0).map(str))
    source.resolve(1)
    assert [type(error) for error in consumer.errors] == [ZeroDivisionError]


def test_a_result_that_is_a_completion_is_followed() -> None:
    source: Completion[int] = Completion()
    inner: Completion[str] = Completion()
    consumer = Consumer(source.map(lambda _: inner))
    source.resolve(1)
    assert consumer.results == []
    inner.resolve("later")
    assert consumer.results == ["later"]


def test_cancelling_a_mapped_completion_cancels_what_it_waits_for() -> None:
    cancelled: list[str] = []
    source: Completion[int] = Completion(lambda: cancelled.append("source"))
    source.map(str).map(str).cancel()
    assert cancelled == ["source"]

    source = Completion(lambda: cancelled.append("never"))
    inner: Completion[str] = Completion(lambda: cancelled.append("inner"))
    mapped: Completion[str] = source.map(lambda _: inner)
    source.resolve(1)
    mapped.cancel()
    assert cancelled == ["source", "inner"]


def test_following_when_cancelled_already_cancels_the_other() -> None:
    cancelled: list[bool] = []
    completion: Completion[int] = Completion()
    completion.cancel()
    completion.follow(Completion(lambda: cancelled.append(True)))
    assert cancelled == [True]


def test_a_coroutine_gets_the_outcome_and_its_cancellation_is_passed_on() -> None:
    async def main() -> None:
        completion: Completion[int] = Completion()
        asyncio.get_running_loop().call_soon(completion.resolve, 7)
        assert await completion.as_future() == 7
        failing: Completion[int] = Completion()
        failing.fail(KeyError())
        with pytest.raises(KeyError):
            await failing.as_future()
        cancelled: list[bool] = []
        future = Completion[int](lambda: cancelled.append(True)).as_future()
        future.cancel()
        await asyncio.sleep(0)
        assert cancelled == [True]

    asyncio.run(main())


def test_a_coroutine_becomes_a_completion_and_is_finished_though_cancelled() -> None:
    async def main() -> None:
        finished = asyncio.Event()
        go_on = asyncio.Event()

        async def work(result: Any) -> Any:
            await go_on.wait()
            finished.set()
            if isinstance(result, Exception):
                raise result
            return result

        inner: Completion[int] = Completion()
        inner.resolve(2)
        one = Consumer(run_coroutine(work(1)))
        two = Consumer(run_coroutine(work(inner)))
        failing = Consumer(run_coroutine(work(KeyError())))
        dropped_inner: list[bool] = []
        dropped = run_coroutine(work(Completion(lambda: dropped_inner.append(True))))
        dropped.cancel()
        go_on.set()
        await finished.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (one.results, two.results, dropped_inner) == ([1], [2], [True])
        assert [type(error) for error in failing.errors] == [KeyError]

    asyncio.run(main())


def test_a_coroutine_that_is_cancelled_by_what_it_waits_for_is_an_error() -> None:
    async def scenario() -> Consumer:
        event: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work() -> int:
            return await event

        consumer = Consumer(run_coroutine(work()))
        await asyncio.sleep(0)
        event.cancel()
        for _ in range(3):  # the future tells the task, and the task its callbacks
            await asyncio.sleep(0)
        return consumer

    consumer = asyncio.run(scenario())
    assert consumer.results == []
    assert [type(error) for error in consumer.errors] == [RuntimeError]


def test_work_of_a_loop_that_was_closed_in_the_middle_of_it_does_not_stay_in_memory() -> None:
    class Broker:
        """What the work holds."""

    def abandoned() -> weakref.ref[Broker]:
        broker = Broker()

        async def work() -> Broker:
            await asyncio.get_running_loop().create_future()
            return broker

        async def begin() -> None:
            run_coroutine(work())
            await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # it would log that a task was not done
        loop.run_until_complete(begin())
        loop.close()
        return weakref.ref(broker)

    async def other_work() -> None:
        await run_coroutine(asyncio.sleep(0)).as_future()

    broker = abandoned()
    asyncio.run(other_work())
    gc.collect()
    assert broker() is None


def test_a_loop_whose_work_is_done_does_not_stay_in_memory() -> None:
    def unclosed() -> weakref.ref[asyncio.AbstractEventLoop]:
        async def work() -> None:
            await run_coroutine(asyncio.sleep(0)).as_future()

        loop = asyncio.new_event_loop()
        loop.run_until_complete(work())
        return weakref.ref(loop)

    with pytest.warns(ResourceWarning, match="unclosed event loop"):
        loop = unclosed()
        gc.collect()
    assert loop() is None
