"""The harness itself: a stall of the broker, memory that it takes and requests that fail are seen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.attack import MB, Attack, Target, carry_out, measured
from attacks.catalogue import ATTACKS
from broker_process import BrokerProcess

STALL = 0.5
SEEN = 0.3  # of it at least: the probe pauses between its requests, and longer on a busy machine


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with BrokerProcess(tmp_path) as broker:
        assert broker.process is not None
        yield Target(broker.bootstrap_servers, broker.process.pid)


def stop_for(target: Target, seconds: float) -> None:
    """The broker's process stands still, as if its event loop were busy."""
    os.kill(target.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)  # not to wait for anything: this is the stall
    finally:
        os.kill(target.pid, signal.SIGCONT)


def test_a_stall_is_measured(target: Target) -> None:
    with measured(target) as result:
        stop_for(target, STALL)
    assert SEEN <= result.outcome.longest_wait < STALL + 5.0
    assert result.outcome.failures == 0


def test_a_stall_that_lasts_until_the_end_is_measured_whole(target: Target) -> None:
    """The probe ends its request before it reports, so a stall under way is not cut off."""
    stall = Attack("stall", lambda target: stop_for(target, STALL), longest_wait=0.1, memory=64 * MB)
    outcome = carry_out(stall, target)
    assert outcome.longest_wait >= SEEN
    assert outcome.seconds >= STALL


def test_peak_and_kept_memory_of_the_broker_are_measured(target: Target) -> None:
    with measured(target) as result, target.client() as client:
        size = 60 * MB
        client.socket.sendall(size.to_bytes(4, "big") + bytes(size - 1))
        deadline = time.monotonic() + 30.0
        while target.peak_memory < size and time.monotonic() < deadline:
            pass
    assert result.outcome.peak_memory >= size / 2


def test_a_broker_that_dies_is_a_failure(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert broker.process is not None
        target = Target(broker.bootstrap_servers, broker.process.pid)
        with pytest.raises((AssertionError, FileNotFoundError, ProcessLookupError)):
            with measured(target):
                broker.kill()


def test_attack_names_are_unique() -> None:
    names = [one.name for one in ATTACKS]
    assert len(names) == len(set(names))
    assert len(names) >= 5
