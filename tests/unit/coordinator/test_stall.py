"""A broker that hangs for longer than a session: a member that sent its heartbeat in time is not removed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol_client.wire import Wire
from raw_client import RawClient

MEMBERS = 100
JOIN_VERSION = 3  # the last that needs no second request for a member id
SESSION_MS = 5000
STALL = 1.1 * SESSION_MS / 1000
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": SESSION_MS}


class Member:
    """The only one of its group."""

    def __init__(self, client: RawClient, group: str) -> None:
        self._client = client
        self._group = group
        self._id = ""
        self._generation = -1

    def send_join(self) -> None:
        self._client.send(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self._id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
            ),
            JOIN_VERSION,
        )

    def joined(self) -> None:
        answer = self._client.receive()
        assert answer.error_code == ErrorCode.NONE
        self._id, self._generation = answer.member_id, answer.generation_id

    def send_sync(self) -> None:
        self._client.send(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._id,
                assignments=[SyncGroupRequestAssignment(member_id=self._id, assignment=b"all")],
            ),
            3,
        )

    def send_heartbeat(self) -> None:
        self._client.send(
            HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._id), 3
        )

    def answer(self) -> ErrorCode:
        return error_of(self._client.receive().error_code)


@pytest.mark.timeout(120)
def test_heartbeats_that_arrived_during_a_stall_keep_members_alive(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker, ExitStack() as clients:
        with Wire(broker.bootstrap_servers) as wire:  # makes the topic of the groups
            deadline = time.monotonic() + 10
            while (
                wire.call(FindCoordinatorRequest(key="g", coordinator_keys=["g"])).coordinators[0].error_code
            ):
                assert time.monotonic() < deadline
        members = [
            Member(clients.enter_context(RawClient(broker.bootstrap_servers, timeout=30)), f"g-{number}")
            for number in range(MEMBERS)
        ]
        for member in members:
            member.send_join()
        for member in members:
            member.joined()
        for member in members:
            member.send_sync()
        assert {member.answer() for member in members} == {ErrorCode.NONE}
        assert broker.process is not None
        os.kill(broker.process.pid, signal.SIGSTOP)
        try:
            for member in members:
                member.send_heartbeat()
            time.sleep(STALL)  # of standing still, which is what is tested
        finally:
            os.kill(broker.process.pid, signal.SIGCONT)
        answers = [member.answer() for member in members]
    lost = [number for number, answer in enumerate(answers) if answer != ErrorCode.NONE]
    assert not lost, f"{len(lost)} of {MEMBERS} were taken for dead, first {answers[lost[0]].name}"
