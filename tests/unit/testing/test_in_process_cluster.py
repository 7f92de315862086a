"""The cluster that users put into their tests: brokers that can be killed, paused and cut off one by one."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ottla.testing
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process_cluster import InProcessCluster

pytest_plugins = ["pytester"]


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


def brokers_known_to(cluster: InProcessCluster, node: int) -> dict[int, bool]:
    """The registered brokers as one of them describes them, and whether they are fenced."""
    with Wire(cluster[node].direct_servers) as wire:
        described = wire.call(DescribeClusterRequest(include_fenced_brokers=True))
    return {broker.broker_id: broker.is_fenced for broker in described.brokers}


def test_a_cluster_is_ready_within_a_second() -> None:
    with ottla.testing.cluster(1):
        pass  # the first one pays for the imports
    taken = []
    for _ in range(3):
        began = time.process_time()  # other processes may keep the machine busy
        with ottla.testing.cluster(3) as cluster:
            for broker in cluster:
                socket.create_connection((broker.host, broker.port)).close()
            taken.append(time.process_time() - began)
    assert min(taken) < 1.0, taken


def test_every_broker_describes_the_same_cluster() -> None:
    with ottla.testing.cluster(3, topics={"t": 3}) as cluster:
        answers = []
        for broker in cluster:
            with Wire(broker.bootstrap_servers) as wire:
                answers.append(wire.call(MetadataRequest(topics=None)))
        addresses = [(node.host, node.port) for node in answers[0].brokers]
        assert sorted(addresses) == sorted((broker.host, broker.port) for broker in cluster)
        assert answers[0] == answers[1] == answers[2]
        (topic,) = answers[0].topics
        assert {frozenset(each.replica_nodes) for each in topic.partitions} == {frozenset({1, 2, 3})}
        assert {each.leader_id for each in topic.partitions} == {1, 2, 3}


def test_a_killed_leader_is_replaced_and_comes_back_as_a_follower() -> None:
    with ottla.testing.cluster(3, topics=["t"]) as cluster:
        dead = cluster.leader("t")
        cluster.kill(dead)
        leader = cluster.wait_for_leader("t", other_than=dead)
        assert leader != dead
        cluster.restart(dead)
        assert cluster[dead].broker is not None
        assert cluster.leader("t") == leader


def test_another_broker_becomes_the_controller_when_that_is_killed() -> None:
    with ottla.testing.cluster(3) as cluster:
        dead = cluster.controller()
        cluster.kill(dead)
        until(lambda: cluster.controller() not in (dead, -1), "another controller")
        assert set(brokers_known_to(cluster, cluster.controller())) == {1, 2, 3} - {dead}


@pytest.mark.parametrize("how", ["cut", "paused"])
def test_a_broker_that_is_not_heard_of_is_fenced_until_it_is_back(how: str) -> None:
    settings = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 100}
    with ottla.testing.cluster(3, topics=["t"], network=True, settings=settings) as cluster:
        controller = cluster.controller()
        silent = next(node for node in cluster.brokers if node != controller)

        def is_out() -> bool:
            return brokers_known_to(cluster, controller).get(silent, True)

        if how == "cut":
            cluster.cut(silent)
            until(is_out, "the broker to be fenced")
            cluster.mend()
        else:
            with cluster.paused(silent):
                until(is_out, "the broker to be fenced or gone")
        until(lambda: not is_out(), "the broker to be back")


def test_a_cluster_without_a_network_cannot_be_cut() -> None:
    with ottla.testing.cluster(1) as cluster, pytest.raises(RuntimeError, match="network=True"):
        cluster.cut(1)


def test_data_outlives_the_cluster_in_a_folder_of_its_own(tmp_path: Path) -> None:
    with ottla.testing.cluster(2, topics={"t": 4}, data=tmp_path):
        pass
    with ottla.testing.cluster(2, data=tmp_path) as cluster, Wire(cluster.bootstrap_servers) as wire:
        (topic,) = wire.metadata().topics
        assert (topic.name, len(topic.partitions)) == ("t", 4)


def test_the_fixture_takes_what_the_mark_says(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.ottla(brokers=2, topics={"t": 1}, num_partitions=5)
        def test_it(ottla_cluster):
            assert len(ottla_cluster.brokers) == 2
            assert ottla_cluster.leader("t") in (1, 2)
            assert ottla_cluster[2].broker.config["num.partitions"] == 5
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
