"""A broker that stood still takes itself for replaced until it knows the newest image."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.suspension import ImageCheck, Suspension, max_gap
from ottla.cluster.registry import SessionLost
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch_image import FetchImageRequest, FetchImageResponse


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


def test_the_allowed_gap_is_far_below_the_session_timeout() -> None:
    assert max_gap(9.0) == 2.0
    assert max_gap(2.0) == 0.5


def test_short_gaps_between_looks_are_normal() -> None:
    time = Time()
    suspension = Suspension(time, 2.0)
    for _ in range(20):
        time.now += 1.5
        assert not suspension.is_suspected


def test_the_first_look_after_a_long_gap_suspects_and_the_suspicion_stays() -> None:
    time = Time()
    suspension = Suspension(time, 2.0)
    time.now += 2.5
    assert suspension.is_suspected
    assert suspension.is_suspected


def test_the_suspicion_ends_with_the_newest_image() -> None:
    async def test() -> None:
        time, answers = Time(), [False, False, True]
        suspension = Suspension(time, 2.0)

        async def is_newest() -> bool:
            return answers.pop(0)

        suspension.start(is_newest)
        time.now += 7
        assert suspension.is_suspected
        await until(lambda: not suspension.is_suspected)
        assert not answers
        await suspension.stop()

    asyncio.run(test())


def test_an_answer_that_was_asked_for_before_another_gap_does_not_count() -> None:
    async def test() -> None:
        time, asked = Time(), 0
        suspension = Suspension(time, 2.0)

        async def is_newest() -> bool:
            nonlocal asked
            asked += 1
            if asked == 1:  # the broker stands still while the answer is on its way
                time.now += 7
                assert suspension.is_suspected
            return True

        suspension.start(is_newest)
        time.now += 7
        assert suspension.is_suspected
        await until(lambda: not suspension.is_suspected)
        assert asked == 2
        await suspension.stop()

    asyncio.run(test())


def test_a_failing_check_is_tried_again() -> None:
    async def test() -> None:
        time, failures = Time(), [RuntimeError("a defect")]
        suspension = Suspension(time, 2.0)

        async def is_newest() -> bool:
            if failures:
                raise failures.pop()
            return True

        suspension.start(is_newest)
        time.now += 7
        assert suspension.is_suspected
        await until(lambda: not suspension.is_suspected)
        await suspension.stop()

    asyncio.run(test())


class Cluster:
    """What the check asks: a registry, a controller and the way to a remote one."""

    def __init__(self) -> None:
        self.active = False
        self.remote: int | None = None
        self.own_epoch: int | None = 5
        self.lost = False
        self.image = SimpleNamespace(version=10)
        self.asked: list[FetchImageRequest] = []
        self.response = FetchImageResponse(version=10)

    async def find(self, path: str) -> Any:
        if self.lost:
            raise SessionLost("it has expired")
        assert path == "/brokers/ids/1"
        return None if self.own_epoch is None else SimpleNamespace(creation_id=self.own_epoch)

    def client(self, broker_id: int) -> Cluster:
        assert broker_id == self.remote
        return self

    async def call(self, request: FetchImageRequest, *, timeout: float) -> FetchImageResponse:
        self.asked.append(request)
        return self.response

    async def caught_up(self, version: int) -> None:
        await until(lambda: self.image.version >= version)

    def check(self) -> bool:
        return asyncio.run(self.checking())

    async def checking(self) -> bool:
        this = cast(Any, self)
        return await ImageCheck(1, this, this, this, this, this, lambda: 5)()


def test_a_controller_has_the_newest_image_while_its_registration_lasts() -> None:
    cluster = Cluster()
    cluster.active = True
    assert cluster.check()
    cluster.own_epoch = None
    assert not cluster.check()
    cluster.own_epoch = 6
    assert not cluster.check()


def test_without_a_controller_nothing_is_known() -> None:
    assert not Cluster().check()


def test_a_lost_session_says_that_another_broker_may_have_taken_over() -> None:
    cluster = Cluster()
    cluster.active = cluster.lost = True
    assert not cluster.check()


def test_the_remote_controller_says_which_image_is_the_newest() -> None:
    cluster = Cluster()
    cluster.remote = 2
    assert cluster.check()
    (asked,) = cluster.asked
    assert (asked.broker_id, asked.broker_epoch, asked.version, asked.max_wait_ms) == (1, 5, 10, 0)


def test_a_newer_image_has_to_be_taken_over_first() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.remote, cluster.response = 2, FetchImageResponse(version=11)
        checking = asyncio.ensure_future(cluster.checking())
        await until(lambda: bool(cluster.asked))
        await asyncio.sleep(0)
        assert not checking.done()
        cluster.image.version = 11
        assert await checking

    asyncio.run(test())


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER])
def test_a_refusal_of_the_remote_controller_says_nothing(code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.remote, cluster.response = 2, FetchImageResponse(error_code=code)
    assert not cluster.check()
