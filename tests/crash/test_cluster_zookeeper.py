"""Brokers whose registry is an ensemble of three ZooKeeper servers: the loss of one of them stops nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from crash.cluster_faults import cause
from crash.cluster_load import SETTINGS, await_in_time, takes_records, under_load
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES, ZooKeepers
from zookeeper_server import ZooKeeperEnsemble

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 4


def test_the_cluster_serves_on_while_leaders_of_zookeeper_are_killed(tmp_path: Path) -> None:
    """No broker is fenced by it, and a broker that dies meanwhile is replaced."""
    with ZooKeeperEnsemble(tmp_path / "zookeeper") as ensemble:
        registry = ZooKeepers(ensemble.servers, "clusters/one")
        with (
            ClusterProcesses(tmp_path, SETTINGS, registry) as cluster,
            under_load(cluster, ("classic", "consumer")) as load,
        ):
            rng = random.Random(1)
            for number in range(ROUNDS):
                await_in_time(lambda: ensemble.leader is not None, "ZooKeeper to have a leader")
                leader = ensemble.leader
                assert leader is not None
                leader.stop()
                began = time.monotonic()
                takes_records(load)
                print(
                    f"records are taken {time.monotonic() - began:.2f} s after ZooKeeper's leader was killed"
                )
                if number % 2:
                    cause(cluster, rng, iter(["kill"]), at_once=1, gap=0.5)
                    takes_records(load)
                leader.start()
                await_in_time(lambda: all(each.mode for each in ensemble.servers), "the third server")
        for node in NODES:
            assert "it leads and coordinates nothing" not in cluster.output(node).read_text()


def test_the_cluster_goes_on_when_most_of_zookeeper_comes_back(tmp_path: Path) -> None:
    """Without most of its servers ZooKeeper answers nothing, and the brokers fence themselves."""
    with ZooKeeperEnsemble(tmp_path / "zookeeper") as ensemble:
        registry = ZooKeepers(ensemble.servers, "ottla")
        with (
            ClusterProcesses(tmp_path, SETTINGS, registry) as cluster,
            under_load(cluster, ("classic", "consumer")) as load,
        ):
            ensemble.servers[0].stop()
            ensemble.servers[1].stop()
            await_in_time(
                lambda: all(
                    "it leads and coordinates nothing" in cluster.output(node).read_text() for node in NODES
                ),
                "the brokers to fence themselves",
            )
            ensemble.servers[0].launch()
            takes_records(load)
            ensemble.servers[1].launch()
