"""What a broker tells the controller of its disk, and when, on virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.disk_reports import FIRST_HOLD, LONGEST_HOLD, DiskReports, Refusals
from ottla.broker.image_follower import ImageChange
from ottla.broker.space import Space
from ottla.clock import ManualClock
from ottla.cluster.disk_states import HEALTHY, DiskReport, Replica
from ottla.cluster.image import BrokerNode, ClusterImage, difference, first_version
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.log_state import LogState
from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.virtual_time import SimulatedClock

IMPAIRED = DiskReport(impaired=True)
REPLICA = (b"t" * 16, 0)


class FakeLog:
    """As much of a log as a report needs."""

    def __init__(self, failure: ApiError | None = None) -> None:
        self.failure = failure


class Broker:
    """Broker 1, and the controller that hears it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.failed: list[Replica] = []
        self.free = 100
        self.heard: list[DiskReport] = []
        self.deaf = False
        """The controller hears, and the answer is lost."""
        self.image = self.image_of(controller_epoch=1, broker_epoch=5)
        clock = SimulatedClock(loop)
        self.space = Space(Path("/data"), clock, lambda: (1000, self.free), lambda: 10, lambda: None)
        self.reports = DiskReports(1, self, self.space, lambda: self.image, self._send, clock)
        self.space.changed = self.reports.look
        self.reports.start()

    def without_log(self) -> list[Replica]:
        return self.failed

    async def _send(self, report: DiskReport) -> tuple[int, int]:
        await asyncio.sleep(0.01)
        self.heard.append(report)
        if self.deaf:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self.image.controller_epoch, self.image.brokers[1].epoch

    @staticmethod
    def image_of(controller_epoch: int, broker_epoch: int, *impaired: int) -> ClusterImage:
        return ClusterImage.of(
            version=first_version(controller_epoch) + len(impaired),
            cluster_id="c",
            controller_id=2,
            brokers={
                n: BrokerNode(n, "h", 1, epoch=broker_epoch, disk=DiskReport(n in impaired)) for n in (1, 2)
            },
            topics={},
            configs={},
        )

    async def follow(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        await self.reports.follow(ImageChange(old, image, difference(old, image)))

    async def refuse(self) -> None:
        self.reports.trouble(cast("LogState", FakeLog()))
        await asyncio.sleep(0.1)


Scenario = Callable[[Broker], Awaitable[None]]


def on_virtual_time(scenario: Scenario) -> Callable[[], None]:
    def test() -> None:
        loop = SimulatedLoop(random.Random(1))

        async def run() -> None:
            broker = Broker(loop)
            await scenario(broker)
            await broker.reports.stop()

        try:
            loop.run_until_complete(run())
        finally:
            loop.discard()

    test.__name__ = scenario.__name__
    return test


@on_virtual_time
async def test_nothing_is_sent_while_all_is_in_order(broker: Broker) -> None:
    broker.reports.look()
    await broker.follow(broker.image_of(2, 6))
    await asyncio.sleep(1000)
    assert broker.heard == []


@on_virtual_time
async def test_a_full_disk_is_reported_until_there_is_enough_space_for_a_while(broker: Broker) -> None:
    for free, impaired in [(50, False), (9, True), (11, True), (15, False), (11, False), (10, True)]:
        broker.free = free
        broker.space.look()
        assert broker.space.is_impaired is impaired, free
        await asyncio.sleep(0.1)
    assert broker.heard == [IMPAIRED, HEALTHY, IMPAIRED]


@on_virtual_time
async def test_refused_work_is_reported_at_once_and_the_disk_tried_again_later(broker: Broker) -> None:
    await broker.refuse()
    assert broker.heard == [IMPAIRED]
    await asyncio.sleep(FIRST_HOLD - 1)
    await broker.refuse()
    await asyncio.sleep(FIRST_HOLD - 1)
    assert broker.heard == [IMPAIRED], "the last refusal counts"
    await asyncio.sleep(1)
    assert broker.heard == [IMPAIRED, HEALTHY]


@on_virtual_time
async def test_a_failed_log_is_reported_at_once_and_until_it_is_mended(broker: Broker) -> None:
    broker.failed = [REPLICA]
    broker.reports.trouble(cast("LogState", FakeLog(ApiError(ErrorCode.KAFKA_STORAGE_ERROR))))
    await asyncio.sleep(1000)
    assert broker.heard == [DiskReport(False, frozenset({REPLICA}))]
    broker.failed = []
    broker.reports.look()
    await asyncio.sleep(0.1)
    assert broker.heard[1:] == [HEALTHY]


@on_virtual_time
async def test_a_new_controller_and_a_new_registration_are_told_again(broker: Broker) -> None:
    broker.failed = [REPLICA]
    broker.reports.look()
    await asyncio.sleep(0.1)
    for image in (broker.image_of(2, 5), broker.image_of(2, 6)):
        before = len(broker.heard)
        await broker.follow(image)
        await asyncio.sleep(0.1)
        assert len(broker.heard) == before + 1
    await broker.follow(broker.image_of(2, 6, 2))
    await asyncio.sleep(0.1)
    assert len(broker.heard) == 3, "the same controller knows it"


@on_virtual_time
async def test_a_report_whose_outcome_is_not_known_is_followed_by_what_is_true_now(broker: Broker) -> None:
    broker.deaf = True
    broker.failed = [REPLICA]
    broker.reports.look()
    await asyncio.sleep(0.1)
    broker.failed = []
    broker.reports.look()
    broker.deaf = False
    await asyncio.sleep(5)
    assert broker.heard[0].failed and broker.heard[-1] == HEALTHY
    count = len(broker.heard)
    await asyncio.sleep(1000)
    assert len(broker.heard) == count


@on_virtual_time
async def test_a_controller_that_does_not_understand_reports_is_complained_about_once(broker: Broker) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ottla.disk")
    logger.addHandler(handler)

    def complaints() -> int:
        return sum("does not know yet" in line for line in said)

    try:
        broker.deaf = True
        broker.failed = [REPLICA]
        broker.reports.look()
        await asyncio.sleep(60)
        assert len(broker.heard) > 30, "it is tried on"
        assert complaints() == 1
        broker.deaf = False
        await asyncio.sleep(5)
        broker.deaf = True
        broker.failed = []
        broker.reports.look()
        await asyncio.sleep(60)
        assert complaints() == 2
    finally:
        logger.removeHandler(handler)


@on_virtual_time
async def test_a_broker_looks_at_its_space_when_another_one_is_full(broker: Broker) -> None:
    """They may share a disk."""
    broker.free = 5
    await broker.follow(broker.image_of(1, 5, 2))
    await asyncio.sleep(0.1)
    assert broker.heard == [IMPAIRED]


def test_a_disk_that_refuses_again_and_again_is_tried_less_and_less() -> None:
    clock, refusals = ManualClock(), Refusals()
    holds = []
    for _ in range(6):
        now = clock.monotonic()
        refusals.refused(now)
        holds.append(refusals.until - now)
        assert refusals.are_recent(now)
        clock.advance(int((holds[-1] + 1) * 1000))
        assert not refusals.are_recent(clock.monotonic())
    assert holds[:3] == pytest.approx([FIRST_HOLD, 2 * FIRST_HOLD, 4 * FIRST_HOLD])
    assert holds[-1] == LONGEST_HOLD
    clock.advance(3_600_000)
    refusals.refused(clock.monotonic())
    assert refusals.until - clock.monotonic() == pytest.approx(FIRST_HOLD)
