"""Commands that run for long live through a broker that goes away and comes back."""

from __future__ import annotations

import signal
import subprocess
import time

import ottla.testing
from conformance.command import LIMIT, Command


def test_consume_follow_continues_after_a_broker_restart() -> None:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        ottla_command = Command(broker.bootstrap_servers)
        ottla_command.ok("produce", "t", input="before\n")
        with ottla_command.start("consume", "t", "--follow") as following:
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline() == b"before\n"
            broker.restart()
            ottla_command.ok("produce", "t", input="after\n")
            assert following.stdout.readline() == b"after\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(LIMIT) == 130
            assert b"trying again" in following.stderr.read()


def test_a_group_member_neither_loses_nor_repeats_records_over_a_broker_restart() -> None:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        ottla_command = Command(broker.bootstrap_servers)
        ottla_command.ok("produce", "t", input="before\n")
        with ottla_command.start("consume", "t", "--group", "g", "--follow") as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"before\n"
            _wait_for_commit(ottla_command, 1)
            broker.restart()
            ottla_command.ok("produce", "t", input="after\n")
            assert following.stdout.readline() == b"after\n"
            following.send_signal(signal.SIGTERM)
            assert following.stdout.read() == b""
            assert following.wait(LIMIT) == 130
        (group,) = ottla_command.ok("group", "list", "--json").document
        assert (group["state"], group["lag"]) == ("Empty", 0)


def test_group_watch_continues_after_a_broker_restart() -> None:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        ottla_command = Command(broker.bootstrap_servers)
        ottla_command.ok("group", "reset-offsets", "g", "--topic", "t", "--to", "latest", "--execute")
        watch = ("group", "lag", "g", "--watch", "--every", "0.1", "--json")
        with ottla_command.start(*watch) as watching:
            assert watching.stdout is not None
            assert b'"lag": 0' in watching.stdout.readline()
            broker.restart()
            ottla_command.ok("produce", "t", input="after\n")
            deadline = time.monotonic() + LIMIT
            while b'"lag": 1' not in watching.stdout.readline():
                assert time.monotonic() < deadline
            watching.send_signal(signal.SIGINT)
            assert watching.wait(LIMIT) == 130


def _wait_for_commit(ottla_command: Command, offset: int) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        result = ottla_command("group", "lag", "g", "--json")
        if result.code == 0 and [p["committed"] for p in result.document[0]["partitions"]] == [offset]:
            return
        assert time.monotonic() < deadline, result


def test_produce_writes_every_line_once_over_a_broker_restart() -> None:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        ottla_command = Command(broker.bootstrap_servers)
        with ottla_command.start("produce", "t", stdin=subprocess.PIPE) as producing:
            assert producing.stdin is not None
            producing.stdin.write(b"before\n")
            producing.stdin.flush()
            deadline = time.monotonic() + LIMIT
            while ottla_command.ok("consume", "t").lines != ["before"]:
                assert time.monotonic() < deadline
            broker.restart()
            producing.stdin.write(b"after\n")
            producing.stdin.close()
            assert producing.wait(LIMIT) == 0
        assert ottla_command.ok("consume", "t").lines == ["before", "after"]


def test_a_command_exits_with_3_when_the_broker_does_not_come_back() -> None:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        ottla_command = Command(broker.bootstrap_servers)
        with ottla_command.start("consume", "t", "--follow", "--timeout", "1") as following:
            ottla_command.ok("produce", "t", input="v\n")
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline() == b"v\n"
            broker.stop()
            assert following.wait(LIMIT) == 3
            errors = following.stderr.read().decode()
    assert f"error: cannot reach the broker at {broker.bootstrap_servers}: connection refused" in errors
