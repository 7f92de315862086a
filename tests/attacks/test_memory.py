"""Memory that clients claim, seen from outside: a stalled client neither stops others nor delays a stop."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from attacks.attack import MB, Target
from broker_process import BrokerProcess
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import RawClient, produce_request


def test_clients_that_send_incomplete_frames_do_not_block_others(tmp_path: Path) -> None:
    """Three frames that fill the request memory and never end: small ones pass, large ones wait a little."""
    settings = {
        "socket.request.max.bytes": 10 * MB,
        "queued.max.request.bytes": 24 * MB,
        "message.max.bytes": 8 * MB,
    }
    with BrokerProcess(tmp_path, settings) as broker, ExitStack() as stack:
        assert broker.process is not None
        target = Target(broker.bootstrap_servers, broker.process.pid)
        target.create_topic("t")
        for _ in range(3):
            stalled = stack.enter_context(RawClient(broker.bootstrap_servers))
            stalled.socket.settimeout(0.5)
            try:
                stalled.socket.sendall((10 * MB).to_bytes(4, "big") + b"\0" * (10 * MB - 50))
            except TimeoutError:
                continue  # there is no memory for the third
        producer = stack.enter_context(RawClient(broker.bootstrap_servers, timeout=60))
        began = time.monotonic()
        assert producer.produce("t", b"x" * 100_000).error_code == 0
        assert time.monotonic() - began < 2
        began = time.monotonic()
        assert producer.produce("t", b"x" * 6 * MB).error_code == 0
        assert time.monotonic() - began < 20


def test_auto_created_topics_leave_partitions_for_the_offsets_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"max.partitions": 100}) as broker:
        with RawClient(broker.bootstrap_servers, timeout=60) as client:
            topics = [MetadataRequestTopic(name=f"t{number}") for number in range(150)]
            answer = client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 9)
            assert sum(topic.error_code == 0 for topic in answer.topics) == 100
            found = client.call(FindCoordinatorRequest(key="group"), 1)
            assert found.error_code == 0


def test_auto_created_topics_are_rate_limited(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"auto.create.topics.per.minute": 50}) as broker:
        with RawClient(broker.bootstrap_servers, timeout=60) as client:

            def codes(first: int, count: int) -> Counter[int]:
                topics = [MetadataRequestTopic(name=f"t{number}") for number in range(first, first + count)]
                request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
                return Counter(topic.error_code for topic in client.call(request, 9).topics)

            assert codes(0, 40) == {0: 40}
            assert codes(40, 60)[ErrorCode.THROTTLING_QUOTA_EXCEEDED] >= 40
            created = CreatableTopic(name="explicit", num_partitions=1, replication_factor=1)
            answer = client.call(CreateTopicsRequest(topics=[created], timeout_ms=30_000), 5)
            assert answer.topics[0].error_code == 0, "CreateTopics is not limited"
        with RawClient(broker.bootstrap_servers, source="127.0.0.2") as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="other")])
            assert client.call(request, 9).topics[0].error_code == 0
        assert "auto.create.topics.per.minute" in broker.output.read_text()


def test_the_broker_stops_at_once_while_large_frames_wait_for_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, ExitStack() as stack:
        for _ in range(600):
            client = stack.enter_context(RawClient(broker.bootstrap_servers))
            client.socket.sendall((100 * MB).to_bytes(4, "big") + b"\0" * 66_000)
        with RawClient(broker.bootstrap_servers) as last:
            last.send(produce_request("no-such-topic", [b"x"]), 9)
            last.receive_frame()  # all earlier requests have been read
        began = time.monotonic()
        assert broker.terminate(patience=60) == 0
        assert time.monotonic() - began < 5
