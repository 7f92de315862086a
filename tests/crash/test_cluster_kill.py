"""Three brokers are killed, stopped, paused and cut off under load; what clients were promised holds.

The brokers are processes of their own with a network between them. `cluster_load` says what is checked. The
registry fails, too, and clocks jump. The quick run has light load and pauses between faults, so that it takes
its time but little of the processors.

OTTLA_CRASH_SEED repeats the faults of a run.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crash.cluster_faults import KINDS, LONG_KINDS, WRONG_CLOCK, cause
from crash.cluster_load import SETTINGS, under_load
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import RegistryUnderTest, SqliteFile, ZooKeepers
from zookeeper_server import ZooKeeperServer

Kinds = Callable[[random.Random], Iterator[str]]
PROTOCOLS = ("classic", "consumer")
QUICK_SECONDS = 60.0
LIGHT = {"queue": 12, "pause": 0.2}
"""Some 50 records a second."""


def run_faults(
    folder: Path,
    seed: int,
    kinds: Kinds,
    *,
    at_once: int = 1,
    gap: float = 0.5,
    registry: RegistryUnderTest | None = None,
    protocols: Sequence[str] = ("classic",),
    wrong_clocks: bool = False,
    load: Mapping[str, Any] = {},
) -> None:
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or seed)
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    with ClusterProcesses(folder, SETTINGS, registry, wrong_clocks=wrong_clocks) as cluster:
        with under_load(cluster, protocols, **load):
            cause(cluster, rng, kinds(rng), at_once=at_once, gap=gap)
        assert not processes_of(folder)


def processes_of(folder: Path) -> list[str]:
    """Command lines of brokers that work on this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if str(folder).encode() in line and b"\0serve\0" in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def once_each(kinds: Sequence[str]) -> Kinds:
    return lambda rng: iter(rng.sample(kinds, len(kinds)))


def many(count: int, kinds: Sequence[str] = LONG_KINDS) -> Kinds:
    def choose(rng: random.Random) -> Iterator[str]:
        return itertools.islice(iter(lambda: rng.choice(kinds), ""), count)

    return choose


def for_seconds(seconds: float, kinds: Sequence[str]) -> Kinds:
    """Each once, and then any of them until the time is over."""

    def choose(rng: random.Random) -> Iterator[str]:
        until = time.monotonic() + seconds
        yield from rng.sample(kinds, len(kinds))
        while time.monotonic() < until:
            yield rng.choice(kinds)

    return choose


@pytest.mark.timeout(300)
def test_acknowledged_records_and_commits_survive_a_minute_of_faults(tmp_path: Path) -> None:
    registry = SqliteFile(tmp_path / "cluster.sqlite")
    kinds = (*KINDS, WRONG_CLOCK, *registry.kinds)
    run_faults(
        tmp_path,
        1,
        for_seconds(QUICK_SECONDS, kinds),
        gap=3.0,
        registry=registry,
        wrong_clocks=True,
        load=LIGHT,
    )


@pytest.mark.slow
def test_acknowledged_records_and_commits_survive_each_kind_of_fault(tmp_path: Path) -> None:
    run_faults(tmp_path, 1, once_each(KINDS))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 6))
def test_acknowledged_records_and_commits_survive_many_faults(tmp_path: Path, seed: int) -> None:
    run_faults(tmp_path, seed, many(30), protocols=PROTOCOLS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(6, 10))
def test_acknowledged_records_and_commits_survive_faults_of_all_parts_at_the_same_time(
    tmp_path: Path, seed: int
) -> None:
    registry = SqliteFile(tmp_path / "cluster.sqlite")
    kinds = (*LONG_KINDS, WRONG_CLOCK, *registry.kinds)
    run_faults(
        tmp_path,
        seed,
        many(80, kinds),
        at_once=3,
        registry=registry,
        protocols=PROTOCOLS,
        wrong_clocks=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 14))
def test_acknowledged_records_and_commits_survive_faults_of_all_parts_with_zookeeper(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "zookeeper").mkdir()
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    try:
        registry = ZooKeepers([server], "ottla")
        kinds = (*LONG_KINDS, WRONG_CLOCK, *registry.kinds)
        run_faults(
            tmp_path,
            seed,
            many(60, kinds),
            at_once=3,
            registry=registry,
            protocols=PROTOCOLS,
            wrong_clocks=True,
        )
    finally:
        server.stop()
