"""Listing, describing and explaining groups show what is committed, however far the high watermark lags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import GeneratorType, SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.handlers.consumer_groups import consumer_group_describe
from ottla.broker.handlers.explain import explain_group
from ottla.broker.handlers.group_admin import describe_groups, list_groups
from ottla.completion import Completion
from ottla.coordinator.group import GroupSettings, NewOffset, OffsetCommit
from ottla.coordinator.group_coordinator import GroupCoordinator
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.explain_group import ExplainGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from unit.coordinator.simulated import NO_TOPICS, Answer, ManualScheduler, MemoryPartition

CONTEXT: Any = SimpleNamespace(version=5)


class World:
    """Handlers over a coordinator of one partition."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler()
        self.partition = MemoryPartition()
        self.purgatory = Purgatory(self.scheduler)

        async def in_thread(work: Callable[[], int]) -> int:
            return work()

        self.groups = GroupCoordinator(
            GroupSettings(),
            environment=NO_TOPICS,
            topic_id=lambda name: None,
            clock=self.scheduler.clock,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            in_thread=in_thread,
            commit_timeout_ms=lambda: 5000,
        )

        async def load() -> None:
            self.groups.follow(1, [cast(Partition, self.partition)])
            await self.groups.loading_done()

        asyncio.run(load())

    def commit_offset(self, group: str) -> None:
        """Makes the group exist."""
        commit = OffsetCommit(group, "", None, -1, [NewOffset("t", b"t" * 16, 0, 5, -1, "")])
        self.groups.run(
            group, lambda groups, reply, effects: effects.answer(reply, groups.commit(commit, effects))
        )

    def ask(self, handler: Callable[..., Any], request: Any) -> Answer:
        """As dispatch runs a handler, without pauses."""
        answer = Answer()

        def take(response: Any) -> None:
            while isinstance(response, GeneratorType):
                response = _result_of(response)
            if isinstance(response, Completion):
                response.then(take, answer)
            else:
                answer(response)

        take(handler(self, request, CONTEXT))
        return answer

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Followers do not fetch; at the end they have caught up."""
        self.partition.is_slow = True
        yield
        self.partition.is_slow = False
        self.partition.high_watermark = self.partition.end_offset
        self.purgatory.notify(self.partition)
        self.scheduler.run()


def _result_of(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value


def listed(answer: Answer) -> list[str]:
    assert not answer.error
    return sorted(group.group_id for group in answer.value.groups)


def test_a_group_is_listed_when_its_first_record_is_committed() -> None:
    world = World()
    world.commit_offset("old")
    with world.lagging():
        world.commit_offset("new")
        answer = world.ask(list_groups, ListGroupsRequest())
        assert answer.waits
    assert listed(answer) == ["new", "old"]


def test_a_listing_that_cannot_be_confirmed_in_time_is_an_error_and_not_a_guess() -> None:
    world = World()
    world.partition.is_slow = True
    world.commit_offset("new")
    answer = world.ask(list_groups, ListGroupsRequest())
    world.scheduler.run(5000)
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_listing_leaves_out_groups_whose_coordinator_moves_away_meanwhile() -> None:
    world = World()
    world.partition.is_slow = True
    world.commit_offset("new")
    answer = world.ask(list_groups, ListGroupsRequest())
    world.groups.follow(1, [])
    assert listed(answer) == []


@pytest.mark.parametrize(
    ("handler", "request_"),
    [
        (describe_groups, DescribeGroupsRequest(groups=["g"])),
        (consumer_group_describe, ConsumerGroupDescribeRequest(group_ids=["g"])),
        (explain_group, ExplainGroupRequest(group_id="g")),
    ],
)
def test_a_description_waits_for_what_it_shows(handler: Callable[..., Any], request_: Any) -> None:
    world = World()
    with world.lagging():
        world.commit_offset("g")
        answer = world.ask(handler, request_)
        assert answer.waits
    assert answer.value


def test_nothing_waits_when_all_is_committed() -> None:
    world = World()
    world.commit_offset("g")
    assert listed(world.ask(list_groups, ListGroupsRequest())) == ["g"]
    assert not world.ask(describe_groups, DescribeGroupsRequest(groups=["g"])).waits
