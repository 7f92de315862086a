"""How the brokers of a cluster on one machine are started: addresses, folders, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.failure import Failure
from ottla.cli.local_cluster import BrokerPlan, check_folder, cluster_settings, plan_brokers
from ottla.cli.serve_config import unreachable_by_peers
from ottla.config.values import BrokerConfig

DATA = Path("/data")


def plans(count: int, registry: str | None = None, **settings: str) -> list[BrokerPlan]:
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig.load(overrides={"listeners": "127.0.0.1:9092", **overrides})
    return plan_brokers(count, config, DATA, registry, ["--log-level=info"])


def test_brokers_have_consecutive_ids_ports_and_folders() -> None:
    found = plans(3)
    assert [(plan.node_id, plan.port, plan.data) for plan in found] == [
        (1, 9092, DATA / "broker-1"),
        (2, 9093, DATA / "broker-2"),
        (3, 9094, DATA / "broker-3"),
    ]
    arguments = found[1].arguments(9093)
    assert arguments[0] == "serve"
    assert {"--node-id=2", "--listen=127.0.0.1:9093", "--data=/data/broker-2", "--log-level=info"} <= set(
        arguments
    )
    assert f"--registry=sqlite:{DATA / 'cluster.sqlite'}" in arguments


def test_port_0_lets_every_broker_pick_its_own() -> None:
    assert [plan.port for plan in plans(3, listeners="127.0.0.1:0")] == [0, 0, 0]


def test_another_registry_is_taken_where_one_is_named() -> None:
    assert "--registry=zookeeper://zk:2181" in plans(1, "zookeeper://zk:2181")[0].options


def test_advertised_ports_are_consecutive_as_well() -> None:
    found = plans(2, advertised_listeners="kafka.example:19092")
    assert ["--advertise=kafka.example:19092" in found[0].options, found[1].options[-1]] == [
        True,
        "--advertise=kafka.example:19093",
    ]


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert "--listen=[::1]:9092" in plans(1, listeners="[::1]:9092")[0].arguments(9092)


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_replicas_follow_from_the_number_of_brokers(brokers: int, replicas: str, in_sync: str) -> None:
    assert cluster_settings(brokers, BrokerConfig.load()) == {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "min.insync.replicas": in_sync,
    }


def test_a_setting_of_the_person_is_kept() -> None:
    config = BrokerConfig.load(overrides={"min.insync.replicas": "1", "default.replication.factor": "2"})
    assert set(cluster_settings(3, config)) == {
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    }


def test_more_brokers_than_ports_are_refused() -> None:
    with pytest.raises(Failure, match="no 3 ports from 65534 on"):
        plans(3, listeners="127.0.0.1:65534")


def test_several_addresses_for_clients_are_refused() -> None:
    with pytest.raises(Failure, match="one address for clients"):
        plans(3, listeners="A://:1,B://:2", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")


def test_the_folder_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(Failure, match="belongs to a single broker"):
        check_folder(tmp_path, 3)


def test_brokers_that_are_left_out_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "broker-3").mkdir()
    assert check_folder(tmp_path, 3) == []
    assert "more than 2 brokers" in check_folder(tmp_path, 2)[0]


@pytest.mark.parametrize(
    ("registry", "peers", "warned"),
    [
        ("zookeeper://zk:2181/ottla", "127.0.0.1:0", True),
        ("zookeeper://zk:2181/ottla", "10.0.0.1:9093", False),
        ("sqlite:/tmp/cluster.sqlite", "127.0.0.1:0", False),
    ],
)
def test_a_registry_for_many_machines_with_brokers_on_the_loopback_is_warned_about(
    registry: str, peers: str, warned: bool
) -> None:
    listeners = f"PLAINTEXT://127.0.0.1:0,INTERNAL://{peers}"
    config = BrokerConfig.load(overrides={"ottla.registry": registry, "listeners": listeners})
    assert bool(unreachable_by_peers(config)) == warned
