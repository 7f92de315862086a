"""Whatever clients send, the broker's log stays readable: printable lines, none forged, not too many."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from ottla.protocol.frames import request_frame
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.schema import Request
from raw_client import RawClient, produce_request

FORGED = "2026-01-01 00:00:00,000 INFO    ottla.broker: all is well"
HOSTILE = f"evil\n{FORGED}\r\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
LONG = HOSTILE + "x" * 32_000
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) +ottla[.a-z_]*: .+")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, {"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


def log_lines(broker: BrokerProcess) -> list[str]:
    """What the broker logged until it stopped, every line of it a record that the broker wrote itself."""
    assert broker.terminate() == 0
    text = broker.output.read_bytes().decode()
    assert "\x1b" not in text
    assert "Traceback" not in text
    lines = text.split("\n")
    assert lines.pop() == ""
    announced = next(n for n, line in enumerate(lines) if line.startswith("Ottla "))
    records = lines[:announced] + lines[announced + 3 :]  # the block that tells people where it listens
    assert all(RECORD.fullmatch(line) for line in records)
    assert all(line.isprintable() for line in records)
    assert not [line for line in records if line == FORGED]
    assert max(map(len, records)) < 2_500
    return records


def find_coordinator(client: RawClient, group: str) -> None:
    """Retry until there is one: the offsets topic is created by the first request."""
    deadline = time.monotonic() + 30.0
    while client.call(FindCoordinatorRequest(key=group), 3).error_code:
        assert time.monotonic() < deadline, "no coordinator"


def send(client: RawClient, request: Request, version: int, client_id: str) -> None:
    client.socket.sendall(b"".join(map(bytes, request_frame(request, version, 1, client_id))))


@pytest.mark.parametrize("name", [HOSTILE, LONG], ids=["hostile", "long"])
def test_names_from_clients_are_escaped_and_truncated(broker: BrokerProcess, name: str) -> None:
    address = broker.bootstrap_servers
    with RawClient(address) as client:  # a client id, and a transactional id
        send(client, InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 2, name)
        client.receive_frame()
    with RawClient(address) as client:  # a topic, by a producer that is told nothing but a closed connection
        send(client, produce_request(name, [b"v"], acks=0), 9, name)
        assert client.is_closed(10.0)
    with RawClient(address) as client:  # a frame that is no request
        client.socket.sendall(b"\x7f\xff\xff\xff" + name.encode())
        assert client.is_closed(10.0)
    with RawClient(address) as client:  # a group with its members
        asked = JoinGroupRequest(
            group_id=name,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type=name,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=b"")],
            reason=name,
        )
        find_coordinator(client, name)
        joined = client.call(asked, 9)
        asked.member_id = joined.member_id
        joined = client.call(asked, 9)
        assert joined.error_code == 0
        client.call(
            SyncGroupRequest(
                group_id=name,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type=name,
                protocol_name=name,
            ),
            5,
        )
        member = MemberIdentity(member_id=joined.member_id, reason=name)
        client.call(LeaveGroupRequest(group_id=name, members=[member]), 5)
    with RawClient(address) as client:  # settings
        setting = AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="50000")
        group = AlterConfigsResource(resource_type=32, resource_name=name, configs=[setting])
        client.call(IncrementalAlterConfigsRequest(resources=[group]), 1)
    assert len(log_lines(broker)) >= 6


def test_error_messages_about_a_long_name_are_short(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        resource = DescribeConfigsResource(resource_type=4, resource_name=LONG)
        (result,) = client.call(DescribeConfigsRequest(resources=[resource]), 4).results
        assert result.error_code
        assert result.error_message.isprintable()
        assert len(result.error_message) < 2_000


def test_repeated_refusals_of_one_client_are_rate_limited_in_the_log(broker: BrokerProcess) -> None:
    refusals = 5_000
    for _ in range(refusals):
        with socket.create_connection((broker.host, broker.port)) as sock:
            sock.sendall(b"\x7f\xff\xff\xff")
            try:
                assert sock.recv(1) == b""
            except ConnectionResetError:
                continue
    lines = log_lines(broker)
    assert len(lines) < 60
    left_out = [re.search(r"and ([\d,]+) more lines about 127.0.0.1", line) for line in lines]
    told = sum(int(found[1].replace(",", "")) for found in left_out if found)
    assert told + sum("closing 127.0.0.1" in line for line in lines) == refusals


def test_a_request_for_many_topics_is_rate_limited_in_the_log(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"max.partitions": 100}) as broker:
        topics = [MetadataRequestTopic(name=f"topic-{n}") for n in range(2_000)]
        with RawClient(broker.bootstrap_servers, timeout=60.0) as client:
            for _ in range(5):
                client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 9)
        assert len(log_lines(broker)) < 40


def test_repeated_rebalances_of_one_client_are_rate_limited_in_the_log(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        find_coordinator(client, "g")
        for _ in range(200):
            asked = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            joined = client.call(asked, 3)
            assert joined.error_code == 0
            synced = SyncGroupRequest(
                group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
            )
            assert client.call(synced, 2).error_code == 0
            client.call(LeaveGroupRequest(group_id="g", member_id=joined.member_id), 1)
    assert len(log_lines(broker)) < 60


def test_errors_of_acks_0_producers_are_rate_limited_in_the_log(broker: BrokerProcess) -> None:
    for _ in range(300):
        with RawClient(broker.bootstrap_servers) as client:
            client.socket.sendall(client.frame(produce_request("absent", [b"v"], acks=0), 9))
            assert client.is_closed(10.0)
    assert len(log_lines(broker)) < 40
