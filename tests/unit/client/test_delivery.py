"""Options of a consumer: what they set, and combinations that would break a promise and are refused."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from ottla.client import ConfigurationError
from ottla.client.delivery import Delivery, commit_mode, is_incremental, librdkafka_config
from ottla.client.retries import Retry, RetryTopic
from ottla.client.topic_patterns import subscription


def config(delivery: Delivery = "at-least-once", **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "bootstrap_servers": ["a:1", "b:2"],
        "group_id": "g",
        "group_instance_id": None,
        "group_protocol": "classic",
        "start": "earliest",
        "client_id": None,
        "delivery": delivery,
        "config": {},
    }
    return librdkafka_config(**{**arguments, **changes})


def test_librdkafka_never_commits_by_itself() -> None:
    made = config()
    assert made["enable.auto.commit"] is False
    assert made["enable.auto.offset.store"] is False
    assert made["bootstrap.servers"] == "a:1,b:2"


@pytest.mark.parametrize("name", ["enable.auto.commit", "group.id", "auto.offset.reset"])
def test_settings_that_an_argument_stands_for_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use the argument"):
        config(config={name: "x"})


def test_an_exactly_once_consumer_reads_committed_records() -> None:
    assert config("exactly-once")["isolation.level"] == "read_committed"
    with pytest.raises(ConfigurationError, match="committed records only"):
        config("exactly-once", config={"isolation.level": "read_uncommitted"})
    assert config(config={"isolation.level": "read_uncommitted"})["isolation.level"] == "read_uncommitted"


def test_only_at_least_once_lets_choose_when_to_commit() -> None:
    assert commit_mode("at-least-once", None) == "auto"
    assert commit_mode("at-least-once", "sync") == "sync"
    for delivery in ("at-most-once", "exactly-once"):
        assert commit_mode(delivery, None) == "manual"
        with pytest.raises(ConfigurationError, match="leave `commit` out"):
            commit_mode(delivery, "auto")
    with pytest.raises(ConfigurationError, match="no delivery"):
        commit_mode("twice", None)  # type: ignore[arg-type]


def test_assignments_are_incremental_unless_an_eager_strategy_is_asked_for() -> None:
    assert is_incremental(config())
    assert is_incremental(config(group_protocol="consumer"))
    assert not is_incremental(config(config={"partition.assignment.strategy": "range"}))
    assert "partition.assignment.strategy" not in config(group_protocol="consumer")


def test_patterns_match_whole_names() -> None:
    assert subscription(["a.b", re.compile("x|y"), re.compile("^z.*$")], posix=True) == [
        "a.b",
        "^(x|y)$",
        "^(z.*)$",
    ]
    with pytest.raises(ConfigurationError, match="POSIX"):
        subscription([re.compile(r"orders-\d+")], posix=True)
    assert subscription([re.compile(r"orders-\d+")], posix=False) == [r"^(orders-\d+)$"]
    for bad in ("^a.*", ""):
        with pytest.raises(ConfigurationError, match="is no topic"):
            subscription([bad], posix=True)


def test_pauses_double_up_to_the_longest_and_end() -> None:
    retry = Retry(attempts=4, first=1.0, longest=3.0, jitter=0.5, never=(KeyError,))
    source = random.Random(1)
    assert [retry.backoff(attempts) for attempts in (1, 2, 3, 1000)] == [1.0, 2.0, 3.0, 3.0]
    for attempts, longest in ((1, 1.0), (2, 2.0), (3, 3.0)):
        pauses = [retry.pause(attempts, ValueError(), source) or 0.0 for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
    assert retry.pause(4, ValueError(), source) is None
    assert retry.pause(1, KeyError(), source) is None


def test_pauses_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        Retry(attempts=0)
    with pytest.raises(ConfigurationError, match="cannot be"):
        Retry(factor=0.5)
    with pytest.raises(ConfigurationError, match="above 0"):
        RetryTopic("t", 0)
