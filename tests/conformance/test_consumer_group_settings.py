"""Settings of groups of the consumer protocol take effect on a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ottla.testing
from conformance.group_member import until
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol_client.wire import Wire

GROUP_RESOURCE = 32


@contextmanager
def broker(**settings: object) -> Iterator[Wire]:
    with ottla.testing.broker(topics={"t": 2}, settings=settings) as running:
        with Wire(running.bootstrap_servers) as wire:
            assert not wire.call(FindCoordinatorRequest(coordinator_keys=["g"])).coordinators[0].error_code
            yield wire


def beat(wire: Wire, member: str = "m", epoch: int = 0, version: int = 1, **fields: Any) -> Any:
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
            **fields,
        }
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member, member_epoch=epoch, **fields)
    return wire.call(request, version=version)


def configure(wire: Wire, **values: int) -> None:
    configs = [
        AlterableConfig(name=f"consumer.{name.replace('_', '.')}", config_operation=0, value=str(value))
        for name, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name="g", configs=configs)
    (answer,) = wire.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert not answer.error_code, answer.error_message


def test_a_group_heartbeat_interval_applies_from_the_next_heartbeat() -> None:
    with broker(**{"group.consumer.min.heartbeat.interval.ms": 10}) as wire:
        assert beat(wire).heartbeat_interval_ms == 500
        configure(wire, heartbeat_interval_ms=50)
        assert beat(wire, epoch=2).heartbeat_interval_ms == 50


def test_a_group_session_timeout_removes_silent_members() -> None:
    with broker(**{"group.consumer.min.session.timeout.ms": 10}) as wire:
        configure(wire, session_timeout_ms=50)
        epoch = beat(wire).member_epoch

        def is_empty() -> bool:
            group = wire.call(ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0]
            return bool(group.group_state == "Empty")

        until(is_empty)
        assert beat(wire, epoch=epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("limit", "code"), [(1, ErrorCode.GROUP_MAX_SIZE_REACHED), (2, ErrorCode.NONE)])
def test_the_number_of_members_of_a_group_is_limited(limit: int, code: ErrorCode) -> None:
    with broker(**{"group.consumer.max.size": limit}) as wire:
        assert beat(wire, "a").error_code == ErrorCode.NONE
        assert beat(wire, "b").error_code == code


def test_the_consumer_protocol_can_be_switched_off() -> None:
    with broker(**{"group.coordinator.rebalance.protocols": "classic"}) as wire:
        assert beat(wire).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_the_first_assignor_is_the_default_and_others_are_refused() -> None:
    with broker(**{"group.consumer.assignors": "range"}) as wire:
        assert beat(wire, server_assignor="uniform").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        beat(wire)
        assert wire.call(ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0].assignor_name == "range"


def test_the_broker_generates_member_ids_for_version_0() -> None:
    with broker() as wire:
        first, second = beat(wire, "", version=0), beat(wire, "", version=0)
        assert first.member_id and second.member_id and first.member_id != second.member_id
