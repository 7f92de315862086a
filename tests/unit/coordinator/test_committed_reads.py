"""Listing, describing and explaining groups show what is committed, however far the high watermark lags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.handlers.consumer_groups import consumer_group_describe
from ottla.broker.handlers.explain import explain_group
from ottla.broker.handlers.group_admin import describe_groups, list_groups
from ottla.broker.handlers.group_offsets import offset_fetch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.explain_group import ExplainGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from unit.coordinator.coordinator_world import World
from unit.coordinator.simulated import Answer


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


def test_a_listing_that_cannot_be_committed_in_time_is_an_error() -> None:
    world = World()
    world.partition.is_slow = True
    world.commit_offset("new")
    answer = world.ask(list_groups, ListGroupsRequest())
    world.scheduler.run(5000)
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_listing_omits_groups_whose_coordinator_moves_meanwhile() -> None:
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
def test_describe_waits_until_the_state_it_shows_is_committed(
    handler: Callable[..., Any], request_: Any
) -> None:
    world = World()
    with world.lagging():
        world.commit_offset("g")
        answer = world.ask(handler, request_)
        assert answer.waits
    assert answer.value


def test_reads_do_not_wait_when_everything_is_committed() -> None:
    world = World()
    world.commit_offset("g")
    assert listed(world.ask(list_groups, ListGroupsRequest())) == ["g"]
    assert not world.ask(describe_groups, DescribeGroupsRequest(groups=["g"])).waits


def test_offsets_that_cannot_be_committed_in_time_are_asked_for_again() -> None:
    """librdkafka does not ask again after COORDINATOR_NOT_AVAILABLE, and its partitions would stand still."""
    world = World()
    world.partition.is_slow = True
    world.commit_offset("g")
    answer = world.ask(offset_fetch, OffsetFetchRequest(group_id="g", topics=None))
    world.scheduler.run(5000)
    assert answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
