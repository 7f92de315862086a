"""What a person reads when the registry keeps a broker from starting."""

from __future__ import annotations

from pathlib import Path

from ottla.cli.start_failure import start_failure
from ottla.cluster.registration import BrokerIdInUse
from ottla.cluster.registry import Unavailable
from ottla.cluster.registry_backends import BackendMissing
from ottla.config.values import BrokerConfig

ZOOKEEPER = BrokerConfig.load(overrides={"ottla.registry": "zookeeper://zk1,zk2/ottla"})


def lines(error: Exception) -> tuple[str, str]:
    failure = start_failure(error, ZOOKEEPER, Path("/data"))
    assert failure is not None
    return str(failure), failure.advice


def test_a_zookeeper_that_does_not_answer_is_named_with_its_address() -> None:
    what, advice = lines(Unavailable("no ZooKeeper server at zk1:2181 answered within 15 s"))
    assert what.startswith("cannot use the registry zookeeper://zk1:2181,zk2:2181/ottla: no ZooKeeper server")
    assert "reach" in advice


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    what, advice = lines(BackendMissing("a registry in ZooKeeper needs the package kazoo"))
    assert (what, advice) == (
        "a registry in ZooKeeper needs the package kazoo",
        "Install it with: pip install 'ottla[zookeeper]'",
    )


def test_an_id_in_use_leads_to_the_option_for_another() -> None:
    assert "--node-id" in lines(BrokerIdInUse("broker 1 is already registered"))[1]
