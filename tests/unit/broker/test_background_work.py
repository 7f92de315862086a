"""Background tasks and the image follower continue after failures."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla.testing
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.replication.partition import Partition
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.in_process import InProcessBroker
from raw_client import FETCH_VERSION, RawClient, fetch_request


def partition_of(broker: InProcessBroker, topic: str) -> Partition:
    assert broker.broker is not None
    return broker.broker.replicas.get(topic, 0)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


class Counted:
    """Stands in for a method: fails, and says when it was called so often."""

    def __init__(self, error: Exception, times: int = 1) -> None:
        self.error = error
        self.times = times
        self.calls = 0
        self.reached = threading.Event()

    def __call__(self, *_: Any) -> Any:
        self.calls += 1
        if self.calls >= self.times:
            self.reached.set()
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("a defect"), ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "EIO")])
def test_background_tasks_continue_after_one_has_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ottla.testing.broker(topics={"t": 1}, settings={"log.retention.check.interval.ms": 50}) as broker:
        failing = Counted(error, times=3)
        monkeypatch.setattr(partition_of(broker, "t").log, "apply_retention", failing)
        assert failing.reached.wait(10), f"retention was tried {failing.calls} times"


def test_retention_continues_after_a_partition_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ottla.testing.broker(
        topics={"bad": 1, "good": 1}, settings={"log.retention.check.interval.ms": 50}
    ) as broker:
        reached = threading.Event()
        bad, good = partition_of(broker, "bad"), partition_of(broker, "good")
        monkeypatch.setattr(good.log, "apply_retention", lambda mark: reached.set())
        failing = Counted(ApiError(ErrorCode.KAFKA_STORAGE_ERROR))
        monkeypatch.setattr(bad.log, "apply_retention", failing)
        reached.clear()
        assert reached.wait(10)


def test_create_topics_is_answered_after_a_failed_log_creation_was_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ottla.testing.broker() as broker:
        assert broker.broker is not None
        replicas = broker.broker.replicas
        prepare, failing = replicas.prepare, Counted(RuntimeError("a defect"))

        def once(*arguments: Any) -> None:
            if failing.reached.is_set():
                prepare(*arguments)
            else:
                failing()

        monkeypatch.setattr(replicas, "prepare", once)
        broker.create_topic("t")
        with RawClient(broker.bootstrap_servers) as client:
            assert client.produce("t", b"v").error_code == 0


def test_a_fetch_that_fails_in_purgatory_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ottla.testing.broker(topics={"t": 1}) as broker,
        RawClient(broker.bootstrap_servers) as reader,
        RawClient(broker.bootstrap_servers) as writer,
    ):
        assert broker.broker is not None
        purgatory = broker.broker.purgatory
        reader.send(fetch_request("t", 0, max_wait_ms=60_000), FETCH_VERSION)
        eventually(lambda: len(purgatory) == 1)
        monkeypatch.setattr(Partition, "read", Counted(RuntimeError("a defect")))
        assert writer.produce("t", b"v").error_code == 0
        assert reader.is_closed(within=10)


def test_a_topic_deleted_while_its_missing_log_is_made_stays_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(RealDisk())
    with ottla.testing.broker(disk=disk) as broker:
        follower = broker.broker
        assert follower is not None
        disk.fail("write", errno.ENOSPC, name="late-0")
        broker.create_topic("late")
        disk.heal()
        replicas, directory = follower.replicas, follower.directory
        prepare, begun, deleting, made = replicas.prepare, *(threading.Event() for _ in range(3))

        def slowly(*arguments: Any) -> None:
            begun.set()
            deleting.wait(10)
            deadline = time.monotonic() + 0.5  # more than the deletion takes, where it is not held up
            while "late" in follower.image.topics and time.monotonic() < deadline:
                time.sleep(0.005)
            prepare(*arguments)
            made.set()

        monkeypatch.setattr(replicas, "prepare", slowly)
        assert begun.wait(20), "the missing log is not made"
        with RawClient(broker.bootstrap_servers) as client:
            client.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="late")]), 6)
            deleting.set()
            assert client.receive().responses[0].error_code == 0
            assert made.wait(10)
            eventually(lambda: ("late", 0) not in directory.logs)
            eventually(lambda: not replicas.missing())
            assert client.produce("late", b"v").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("made_again", [False, True])
def test_deleting_a_topic_answers_waiting_fetches_at_once(made_again: bool) -> None:
    with (
        ottla.testing.broker(topics={"t": 1}) as broker,
        RawClient(broker.bootstrap_servers) as reader,
        RawClient(broker.bootstrap_servers) as admin,
    ):
        assert broker.broker is not None
        purgatory = broker.broker.purgatory
        reader.send(fetch_request("t", 0, max_wait_ms=60_000), FETCH_VERSION)
        eventually(lambda: len(purgatory) == 1)
        admin.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)
        if made_again:
            broker.create_topic("t")
        (data,) = reader.receive().responses[0].partitions
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
