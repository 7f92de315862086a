"""A broker under load is killed again and again; nothing it acknowledged is lost, moved or doubled."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker_process import BrokerProcess
from crash.load import PATIENCE, IdempotentLoad, PlainLoad

PARTITIONS = 3
SMALL_SEGMENTS = {"log.segment.bytes": 1 << 20, "log.index.interval.bytes": 1024}
"""Segments roll every second or so, so that kills meet rolls and snapshots too."""


def create_topics(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(PATIENCE)


@dataclass
class Restart:
    seconds: float
    """From the command to the first answer."""
    cpu_seconds: float


def run_kills(folder: Path, kills: int) -> None:
    """Kills the broker so many times at random moments under load; restarts cost little more than a start."""
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    restarts = []
    with BrokerProcess(folder, SMALL_SEGMENTS) as broker:
        first_start = broker.cpu_seconds
        create_topics(broker.bootstrap_servers, "idempotent", "plain")
        loads: list[IdempotentLoad | PlainLoad] = [
            IdempotentLoad(broker.bootstrap_servers, "idempotent", PARTITIONS),
            *(PlainLoad(broker.bootstrap_servers, "plain", n) for n in range(PARTITIONS)),
        ]
        for load in loads:
            load.start()
        try:
            moment = threading.Event()
            for kill in range(kills):
                before = [load.progress for load in loads]
                await_progress(loads, before)
                moment.wait(rng.uniform(0.0, 0.6))
                broker.kill()
                restarts.append(Restart(broker.start(), broker.cpu_seconds))
                print(f"kill {kill + 1}: {[load.progress for load in loads]}, back: {restarts[-1]}")
            await_progress(loads, [load.progress for load in loads])
        finally:
            for load in loads:
                load.finish()
        for load in loads:
            load.check(broker.bootstrap_servers)
        # What is there was not only in memory, and a clean end keeps it too.
        assert broker.terminate() == 0
        broker.start()
        for load in loads:
            load.check(broker.bootstrap_servers)
    # Processor time beside that of a start with nothing to recover: a busy machine takes longer for both.
    restart = statistics.median(restart.cpu_seconds for restart in restarts)
    assert restart < max(2 * first_start, 1.0), (first_start, restarts)


def await_progress(loads: list[IdempotentLoad | PlainLoad], before: list[int]) -> None:
    """Every load has had something acknowledged since: the broker is up and they have found it again."""
    deadline = time.monotonic() + PATIENCE
    while any(load.progress <= count for load, count in zip(loads, before, strict=True)):
        assert time.monotonic() < deadline, f"no progress: {before} -> {[load.progress for load in loads]}"
        time.sleep(0.005)


def test_no_acknowledged_record_is_lost_or_duplicated_when_the_broker_is_killed(tmp_path: Path) -> None:
    run_kills(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_acknowledged_record_is_lost_or_duplicated_over_fifty_kills(tmp_path: Path) -> None:
    run_kills(tmp_path, 50)


def test_a_graceful_end_under_load_loses_nothing_and_leaves_nothing_to_recover(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SMALL_SEGMENTS) as broker:
        create_topics(broker.bootstrap_servers, "idempotent", "plain")
        loads: list[IdempotentLoad | PlainLoad] = [
            IdempotentLoad(broker.bootstrap_servers, "idempotent", PARTITIONS),
            PlainLoad(broker.bootstrap_servers, "plain", 0),
        ]
        for load in loads:
            load.start()
        try:
            for _ in range(2):
                await_progress(loads, [load.progress + 200 for load in loads])
                assert broker.terminate() == 0
                assert (broker.data / ".kafka_cleanshutdown").exists()
                broker.start()
            await_progress(loads, [load.progress for load in loads])
        finally:
            for load in loads:
                load.finish()
        for load in loads:
            load.check(broker.bootstrap_servers)


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as first:
        second = BrokerProcess(tmp_path)
        with pytest.raises(AssertionError, match="did not start") as refused:
            second.start()
        assert "Traceback" not in str(refused.value)
        assert first.answers()
