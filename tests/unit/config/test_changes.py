"""What becomes of a configuration that a client changes, and what it may change."""

from __future__ import annotations

import pytest

from ottla.config.changes import Operation, Step, difference, edited, replacement
from ottla.config.table import TOPIC_KEYS
from ottla.config.validation import validate_broker_config, validate_group_config
from ottla.config.values import BrokerConfig
from ottla.protocol.errors import ApiError, ErrorCode

SET, DELETE, APPEND, SUBTRACT = Operation


def edit(present: dict[str, str], *steps: Step) -> dict[str, str]:
    return edited(present, steps, TOPIC_KEYS, lambda _: ["delete"])


def refused(code: ErrorCode, present: dict[str, str], *steps: Step) -> str:
    with pytest.raises(ApiError) as caught:
        edit(present, *steps)
    assert caught.value.code is code
    return caught.value.message


def test_setting_and_deleting_touch_only_the_named_keys() -> None:
    present = {"retention.ms": "1", "segment.ms": "2"}
    assert edit(present, ("retention.ms", SET, "5")) == {"retention.ms": "5", "segment.ms": "2"}
    assert edit(present, ("retention.ms", DELETE, None)) == {"segment.ms": "2"}
    assert edit(present, ("retention.ms", DELETE, "ignored")) == {"segment.ms": "2"}
    assert edit(present, ("flush.ms", DELETE, None)) == present
    assert edit(present) == present


def test_appending_adds_what_a_list_does_not_hold_and_starts_from_the_default() -> None:
    assert edit({}, ("cleanup.policy", APPEND, "compact")) == {"cleanup.policy": "delete,compact"}
    present = {"cleanup.policy": "compact"}
    assert edit(present, ("cleanup.policy", APPEND, "compact")) == present
    assert edit(present, ("cleanup.policy", APPEND, "delete, compact")) == {
        "cleanup.policy": "compact,delete"
    }


def test_subtracting_removes_what_a_list_holds() -> None:
    assert edit({}, ("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": ""}
    present = {"cleanup.policy": "compact,delete"}
    assert edit(present, ("cleanup.policy", SUBTRACT, "compact")) == {"cleanup.policy": "delete"}
    assert edit(present, ("cleanup.policy", SUBTRACT, "other")) == present


def test_invalid_incremental_operations_are_refused() -> None:
    invalid = ErrorCode.INVALID_REQUEST
    assert "must not be null" in refused(invalid, {}, ("retention.ms", SET, None))
    assert "must not be null" in refused(invalid, {}, ("cleanup.policy", APPEND, None))
    assert "no operation 9" in refused(invalid, {}, ("retention.ms", 9, "1"))
    assert "twice" in refused(invalid, {}, ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    assert "not a list" in refused(ErrorCode.INVALID_CONFIG, {}, ("retention.ms", APPEND, "1"))
    assert "not a list" in refused(ErrorCode.INVALID_CONFIG, {}, ("nobody.knows", SUBTRACT, "1"))


def test_a_replacement_is_taken_whole() -> None:
    assert replacement([("a", "1"), ("b", "")]) == {"a": "1", "b": ""}
    for pairs in ([("a", None)], [("a", "1"), ("a", "1")]):
        with pytest.raises(ApiError) as caught:
            replacement(pairs)
        assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_the_difference_lists_removed_and_changed_keys() -> None:
    assert difference({"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "4", "d": "5"}) == {
        "a": None,
        "c": "4",
        "d": "5",
    }


@pytest.mark.parametrize(
    ("overrides", "cluster_wide", "reason"),
    [
        ({"num.partitions": "3"}, False, "cannot change while the broker runs: num.partitions"),
        ({"log.retention.hours": "3", "node.id": "2"}, True, "runs: log.retention.hours, node.id"),
        ({"listeners": ":1"}, True, "can only change for one broker, not for all: listeners"),
        ({"ssl.keystore.type": "PEM"}, False, "can only change for one listener: ssl.keystore.type"),
        ({"log.segment.bytes": "12"}, True, "log.segment.bytes: must be at least 1048576 (got 12)"),
        ({"max.conections": "3"}, True, "unknown broker key max.conections; did you mean max.connections?"),
        ({"max.connections.per.ip.overrides": "x"}, True, "'x' is not address:limit"),
    ],
)
def test_broker_keys_that_cannot_change_like_that_are_refused(
    overrides: dict[str, str], cluster_wide: bool, reason: str
) -> None:
    with pytest.raises(ApiError) as caught:
        validate_broker_config(overrides, cluster_wide=cluster_wide)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert reason in caught.value.message


def test_broker_keys_that_can_change_may() -> None:
    validate_broker_config({"log.retention.ms": "5", "max.connections": "7"}, cluster_wide=True)
    validate_broker_config({"listeners": ":1"}, cluster_wide=False)


def test_groups_stay_within_the_bounds_of_the_broker() -> None:
    broker = BrokerConfig.load()
    validate_group_config(
        {"consumer.session.timeout.ms": "50000", "share.isolation.level": "read_committed"}, broker
    )
    for value, reason in (
        ("1", "must be at least group.consumer.min"),
        ("70000", "must be at most group.consumer.max"),
    ):
        with pytest.raises(ApiError, match=reason) as caught:
            validate_group_config({"consumer.session.timeout.ms": value}, broker)
        assert caught.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(ApiError, match="unknown group key"):
        validate_group_config({"nobody.knows": "1"}, broker)
