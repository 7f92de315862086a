"""Compaction in a broker goes on: damaged files, defects of ours, topics that are deleted and made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import ottla.testing
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.admin import delete_topic
from ottla.protocol_client.log_state import compact_logs
from ottla.protocol_client.wire import Wire
from ottla.storage.cleaning.cleaner import Cleaner
from ottla.storage.log import Log
from ottla.testing.in_process import InProcessBroker
from unit.storage.logs import read_all

NAMES = ("first", "second", "third")


def passes_of(broker: InProcessBroker, name: str) -> object:
    return state_of(broker, name).passes


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def produce(wire: Wire, topic: str, values: list[bytes]) -> None:
    """One batch for each value, all with the same key."""
    for value in values:
        batch = bytes(encode_batch([Record(0, int(time.time() * 1000), b"key", value, [])]))
        data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
        answer = wire.call(ProduceRequest(acks=1, timeout_ms=5000, topic_data=data), version=9)
        assert not answer.responses[0].partition_responses[0].error_code


def compact(wire: Wire, topic: str) -> None:
    compact_logs(wire, wire.topic(topic, patience=10))


def log_of(broker: InProcessBroker, topic: str) -> Log:
    assert broker.broker is not None
    return broker.broker.directory.logs[topic, 0]


def state_of(broker: InProcessBroker, topic: str) -> Any:
    assert broker.broker is not None
    return broker.broker.cleaning.cleaner.state(log_of(broker, topic))


def values_of(broker: InProcessBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in read_all(log_of(broker, topic), max_bytes=1 << 20)]


def filled(broker: InProcessBroker, wire: Wire) -> None:
    for name in NAMES:
        broker.create_topic(name, config={"cleanup.policy": "compact"})
        produce(wire, name, [b"old", b"new"])


def test_a_damaged_segment_marks_its_partition_and_the_others_are_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ottla.testing.broker() as broker, Wire(broker.bootstrap_servers) as wire:
        filled(broker, wire)
        compact(wire, "second")
        until(lambda: state_of(broker, "second").passes)
        produce(wire, "second", [b"newer"])
        path = broker.data / "second-0" / "00000000000000000000.log"
        with path.open("r+b") as file:
            file.seek(-3, 2)
            file.write(b"x")
        compact(wire, "second")
        until(lambda: state_of(broker, "second").uncleanable)
        assert str(path) in state_of(broker, "second").uncleanable
        assert str(path) in caplog.text
        for name in ("first", "third"):
            compact(wire, name)
            until(partial(passes_of, broker, name))
            assert values_of(broker, name) == [b"new"]


@pytest.mark.parametrize("method", ["plan", "choose"])
def test_an_unexpected_exception_does_not_end_compaction(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = getattr(Cleaner, method)
    failed: list[object] = []

    def fails_once(*arguments: Any) -> Any:
        if not failed:
            failed.append(arguments)
            raise ZeroDivisionError("a defect")
        return original(*arguments)

    settings = {"log.cleaner.backoff.ms": 50}
    with ottla.testing.broker(settings=settings) as broker, Wire(broker.bootstrap_servers) as wire:
        filled(broker, wire)
        monkeypatch.setattr(Cleaner, method, fails_once)
        compact(wire, "first")
        until(lambda: failed)
        until(lambda: "ZeroDivisionError" in caplog.text)
        for name in ("second", "third"):
            compact(wire, name)
            until(partial(passes_of, broker, name))
        if method == "plan":
            assert "ZeroDivisionError" not in (state_of(broker, "first").problem or "")
            assert state_of(broker, "first").failures == 1
        else:
            assert broker.broker is not None
            assert broker.broker.cleaning.defects == 1


def test_compaction_of_a_deleted_topic_does_not_affect_its_recreated_topic() -> None:
    # Slow enough that the pass is under way while the topic is deleted and made again.
    settings = {"log.cleaner.io.max.bytes.per.second": 200_000}
    with ottla.testing.broker(settings=settings) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            broker.create_topic("topic", config={"cleanup.policy": "compact"})
            produce(wire, "topic", [bytes(50_000), bytes(50_000), bytes(100_000), b"old"])
            compact(wire, "topic")
            state = state_of(broker, "topic")
            until(lambda: state.running)
            old_log = log_of(broker, "topic")
            delete_topic(wire, "topic")
            assert not state.running
            broker.create_topic("topic", config={"cleanup.policy": "compact"})
            assert log_of(broker, "topic") is not old_log
            produce(wire, "topic", [b"new"])
            compact(wire, "topic")
            until(lambda: state_of(broker, "topic").passes)
            files = {path.name for path in (broker.data / "topic-0").iterdir()}
            assert not [name for name in files if name.endswith((".cleaned", ".swap"))]
            assert values_of(broker, "topic") == [b"new"]
        broker.restart()
        assert values_of(broker, "topic") == [b"new"]
