"""What clients can make a broker keep in memory: measured from outside, on a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import FETCH_VERSION, RawClient, fetch_request, produce_request

MB = 1 << 20
REQUEST_MEMORY = 64 * MB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("memory")
    settings = {
        "queued.max.request.bytes": REQUEST_MEMORY,
        "socket.request.max.bytes": 50 * MB,
        "message.max.bytes": 30 * MB,
    }
    with BrokerProcess(folder, settings) as process:
        with RawClient(process.bootstrap_servers) as client:
            topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "abc"]
            client.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 5)
            client.produce("a", b"warm")
            client.fetch("a", 0)
        yield process


def is_served_quickly(broker: BrokerProcess) -> bool:
    began = time.monotonic()
    with RawClient(broker.bootstrap_servers) as client:
        return client.call(ApiVersionsRequest(), 0).error_code == 0 and time.monotonic() - began < 1


def test_memory_is_not_allocated_for_claimed_frame_sizes(broker: BrokerProcess) -> None:
    """Fifty frames claim 40 MB each and send little of it; together they stay below the bound."""
    before = broker.resident_bytes
    with ExitStack() as stack:
        for _ in range(50):
            client = stack.enter_context(RawClient(broker.bootstrap_servers))
            client.socket.sendall((40 * MB).to_bytes(4, "big") + b"\0" * 2000)
        assert is_served_quickly(broker)
        assert broker.resident_bytes - before < REQUEST_MEMORY + 16 * MB


def test_requests_in_progress_stay_within_their_memory_limit(broker: BrokerProcess) -> None:
    """Six producers of 20 MB at once: not all fit, the others wait, all are answered."""
    before, most = broker.resident_bytes, 0
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap_servers, timeout=30)) for _ in range(6)]
        frames = [client.frame(produce_request("a", [b"x" * 20 * MB]), 9) for client in clients]
        step = 1 * MB
        waiting = dict(zip(clients, frames, strict=True))
        for client in clients:
            client.socket.setblocking(False)
        sent = dict.fromkeys(clients, 0)
        deadline = time.monotonic() + 30
        while waiting:
            assert time.monotonic() < deadline, {i: sent[c] for i, c in enumerate(clients)}
            for client, frame in list(waiting.items()):
                try:
                    sent[client] += client.socket.send(frame[sent[client] : sent[client] + step])
                except BlockingIOError:
                    continue
                if sent[client] == len(frame):
                    del waiting[client]
            most = max(most, broker.resident_bytes - before)
        for client in clients:
            client.socket.settimeout(30)
            answer = client.receive().responses[0].partition_responses[0]
            assert answer.error_code == 0
        assert is_served_quickly(broker)
    assert most < REQUEST_MEMORY + 16 * MB, f"{most / MB:.0f} MB"


def test_fetch_responses_that_are_never_read_take_no_memory(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap_servers) as writer:
        for _ in range(20):
            assert writer.produce("b", b"x" * 1 * MB).error_code == 0
    before = broker.resident_bytes
    with ExitStack() as stack:
        for _ in range(20):
            reader = stack.enter_context(RawClient(broker.bootstrap_servers, receive_buffer=8192))
            reader.socket.sendall(
                b"".join(reader.frame(fetch_request("b", 0), FETCH_VERSION) for _ in range(300))
            )
        for _ in range(20):
            assert is_served_quickly(broker)
        assert broker.resident_bytes - before < 8 * MB


def test_a_client_that_pipelines_requests_and_never_reads_takes_no_memory(broker: BrokerProcess) -> None:
    """The same with answers that are made in memory."""
    before = broker.resident_bytes
    with ExitStack() as stack:
        for _ in range(10):
            reader = stack.enter_context(RawClient(broker.bootstrap_servers, receive_buffer=8192))
            reader.socket.setblocking(False)
            requests = b"".join(reader.frame(ApiVersionsRequest(), 0) for _ in range(10_000))
            try:
                reader.socket.sendall(requests)
            except BlockingIOError:
                continue  # the broker has stopped to read, as it should
        for _ in range(20):
            assert is_served_quickly(broker)
        assert broker.resident_bytes - before < 16 * MB


def test_clients_that_disconnect_in_purgatory_leave_no_memory_or_descriptors(broker: BrokerProcess) -> None:
    def storm() -> None:
        for _ in range(300):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(fetch_request("c", 0, max_wait_ms=600_000), FETCH_VERSION)
        with RawClient(broker.bootstrap_servers) as last:
            last.call(ApiVersionsRequest(), 0)  # all earlier clients have been accepted
        deadline = time.monotonic() + 10
        while broker.open_files > files + 5:
            assert time.monotonic() < deadline, "connections were not closed"
            time.sleep(0.01)

    files = broker.open_files
    storm()
    before = broker.resident_bytes
    storm()
    assert broker.resident_bytes - before < 4 * MB


def test_unread_responses_stay_within_their_memory_limit(tmp_path: Path) -> None:
    """Twenty clients ask for much and read nothing: the slowest are cut off, and the broker says so."""
    names = [MetadataRequestTopic(name=f"no-such-topic-{number:05d}") for number in range(20_000)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    settings = {
        "queued.max.request.bytes": 4 * MB,
        "socket.request.max.bytes": 4 * MB,
        "socket.send.buffer.bytes": 16 * 1024,
    }
    with BrokerProcess(tmp_path, settings) as broker, ExitStack() as stack:
        with RawClient(broker.bootstrap_servers) as client:
            assert len(client.call(request, 8).topics) == len(names)
        before = broker.resident_bytes
        clients = []
        for _ in range(20):
            client = stack.enter_context(RawClient(broker.bootstrap_servers, receive_buffer=4096, timeout=30))
            client.send(request, 8)
            clients.append(client)
        deadline = time.monotonic() + 60
        while "it does not take its answer" not in broker.output.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert clients[0].is_closed(within=5), "the one that waits for longest"
        assert len(clients[-1].receive().topics) == len(names), "the last client still gets its response"
        # Two requests at a time are worked on, each with 20,000 entries and as many answers.
        assert broker.resident_bytes - before < (4 + 2 * 24) * MB
        assert is_served_quickly(broker)
