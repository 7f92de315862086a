"""Following the image of another broker, with a controller that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from ottla.broker.controller_location import ControllerLocation
from ottla.broker.image_follower import ImageChange, ImageFollower
from ottla.broker.image_source import ImageSource
from ottla.broker.peers import Peers
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import ClusterImage, ImageDelta
from ottla.cluster.image_wire import nothing_new, response_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch_image import FetchImageRequest, FetchImageResponse, ImageTopic

PATIENCE = 30.0
FIRST = replace(ClusterImage(), version=1 << 32, cluster_id="c", controller_id=2)


class Location:
    """Broker 2 is the controller."""

    def __init__(self) -> None:
        self.remote: int | None = 2
        self.moved = asyncio.Event()

    async def look(self) -> None:
        pass


class Controller:
    """Answers FetchImage from a feed, unless it is told what to answer next. It is its own `Peers`, too."""

    def __init__(self) -> None:
        self.feed = ImageFeed(FIRST)
        self.requests: list[FetchImageRequest] = []
        self.next: list[FetchImageResponse] = []

    def client(self, broker_id: int, use: str) -> Controller:
        return self

    async def call(self, request: FetchImageRequest, *, timeout: float) -> FetchImageResponse:
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.next:
            return self.next.pop(0)
        news = self.feed.since(request.version)
        if news is None:
            await asyncio.sleep(request.max_wait_ms / 1000)
            return nothing_new(request.version)
        steps = response_of(news)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("FetchImageResponse", end.value)


def follow(controller: Controller, follower: ImageFollower, location: Location | None = None) -> ImageSource:
    source = ImageSource(
        1,
        ImageFeed(),
        cast("ControllerLocation", location or Location()),
        cast("Peers", controller),
        follower,
        broker_epoch=lambda: 7,
        heartbeat_seconds=lambda: 0.01,
    )
    source.start()
    follower.start(source)
    return source


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def delta(controller: Controller) -> ImageDelta:
    version = controller.feed.current.version
    return ImageDelta(base=version, version=version + 1, configs={(4, ""): {"k": str(version)}})


def test_images_arrive_and_the_controller_learns_which_one_is_acted_on() -> None:
    async def main() -> None:
        controller, follower = Controller(), ImageFollower([], [])
        source = follow(controller, follower)
        await until(lambda: follower.image == FIRST)
        controller.feed.publish(delta(controller))
        await until(lambda: follower.image == controller.feed.current)
        await until(lambda: controller.requests[-1].applied == follower.image.version)
        await source.stop()
        await follower.stop()

    asyncio.run(main())


def test_signs_of_life_go_on_while_a_change_is_taken_over() -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def slow(change: ImageChange) -> None:
            await go_on.wait()

        controller, follower = Controller(), ImageFollower([slow], [])
        source = follow(controller, follower)
        await until(lambda: len(controller.requests) > 5)
        last = controller.requests[-1]
        assert (last.version, last.applied) == (FIRST.version, 0)
        go_on.set()
        await until(lambda: controller.requests[-1].applied == FIRST.version)
        await source.stop()
        await follower.stop()

    asyncio.run(main())


def test_a_change_that_does_not_fit_is_replaced_by_the_whole_image() -> None:
    async def main() -> None:
        controller, follower = Controller(), ImageFollower([], [])
        source = follow(controller, follower)
        await until(lambda: follower.image == FIRST)
        grown = [ImageTopic(name="unknown")]
        version = FIRST.version
        controller.next = [FetchImageResponse(base=version, version=version + 1, changed_topics=grown)]
        controller.feed.publish(delta(controller))
        await until(lambda: follower.image == controller.feed.current)
        assert any(request.version == 0 for request in controller.requests[2:])
        await source.stop()
        await follower.stop()

    asyncio.run(main())


def test_refusals_and_older_images_change_nothing() -> None:
    async def main() -> None:
        controller, follower = Controller(), ImageFollower([], [])
        older = FetchImageResponse(base=-1, version=5, cluster_id="c")
        refusal = FetchImageResponse(error_code=ErrorCode.NOT_CONTROLLER)
        source = follow(controller, follower)
        await until(lambda: follower.image == FIRST)
        controller.next = [refusal, older, FetchImageResponse(base=-1, version=FIRST.version + 9)]
        await until(lambda: not controller.next)
        controller.feed.publish(delta(controller))
        await until(lambda: follower.image == controller.feed.current)
        await source.stop()
        await follower.stop()

    asyncio.run(main())


def test_a_controller_that_does_not_answer_is_silent_until_it_answers_again() -> None:
    async def main() -> None:
        controller, follower = Controller(), ImageFollower([], [])
        source = follow(controller, follower)
        assert source.is_silent
        await until(lambda: not source.is_silent)
        controller.next = [FetchImageResponse(error_code=ErrorCode.NOT_CONTROLLER)] * 1000
        await until(lambda: source.is_silent)
        controller.next.clear()
        await until(lambda: not source.is_silent)
        await source.stop()
        await follower.stop()

    asyncio.run(main())
