"""Commands that run for long live through a broker that goes away and comes back."""

from __future__ import annotations

import signal
import subprocess
import time

import ottla.testing
from conformance.command import LIMIT, Command


def test_following_goes_on_after_a_restart_of_the_broker() -> None:
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


def test_producing_goes_on_after_a_restart_and_writes_every_line_once() -> None:
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


def test_a_broker_that_does_not_come_back_ends_the_command_with_3() -> None:
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
