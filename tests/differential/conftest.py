"""The two brokers that the differential tests hold side by side, started once and ended with the session.

A peer that runs already may be named instead, which saves the start while writing scenarios:
OTTLA_DIFFERENTIAL_KAFKA=HOST:PORT and OTTLA_DIFFERENTIAL_OTTLA=HOST:PORT.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for bench, which carries Apache Kafka

from bench.peers.kafka import answers, free_port, kafka_peer  # noqa: E402

from differential.compare import Sides  # noqa: E402

GROUPS_DO_NOT_WAIT = {"group.initial.rebalance.delay.ms": "0"}
"""For more members before their first rebalance: there are none in a script."""

# Kafka is started with these by bench/peers, so that one broker can hold its internal topics; a broker says
# of each setting where it comes from, so Ottla is told the same.
SAME_SETTINGS = {
    "default.replication.factor": "1",
    "node.id": "1",
    **GROUPS_DO_NOT_WAIT,
}
START_DEADLINE = 30.0


@contextmanager
def ottla_process(data: Path) -> Iterator[str]:
    """`ottla serve` as a process of its own, as users run it."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("ottla")), "serve", "--data", str(data)]
    command += ["--listen", f"127.0.0.1:{port}"]
    for key, value in SAME_SETTINGS.items():
        command += ["--set", f"{key}={value}"]
    with (data.parent / "ottla.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_DEADLINE
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"ottla serve did not start:\n{Path(log.name).read_text()[-2000:]}")
                time.sleep(0.02)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _given(variable: str) -> Iterator[str]:
    yield os.environ[variable]


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Apache Kafka and Ottla, both fresh and both answering."""
    kafka = _given("OTTLA_DIFFERENTIAL_KAFKA") if "OTTLA_DIFFERENTIAL_KAFKA" in os.environ else _kafka()
    folder = tmp_path_factory.mktemp("ottla")
    ottla = (
        _given("OTTLA_DIFFERENTIAL_OTTLA")
        if "OTTLA_DIFFERENTIAL_OTTLA" in os.environ
        else ottla_process(folder / "data")
    )
    with kafka as theirs, ottla as ours:
        # The scripted moment lies an hour back, on a whole second, and is the same for both.
        yield Sides(
            theirs=theirs, ours=ours, run=uuid.uuid4().hex[:6], now=int(time.time()) * 1000 - 3_600_000
        )


@contextmanager
def _kafka() -> Iterator[str]:
    with kafka_peer(GROUPS_DO_NOT_WAIT) as peer:
        yield peer.bootstrap
