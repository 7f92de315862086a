"""How many replicas `__consumer_offsets` gets."""

from __future__ import annotations

import pytest

from ottla.broker.offsets_topic import replication_factor
from ottla.config.values import BrokerConfig

SHARED = {"ottla.registry": "zookeeper://127.0.0.1:2181/ottla"}


@pytest.mark.parametrize(
    ("settings", "brokers", "replicas"),
    [
        ({}, 1, 1),
        ({}, 3, 3),
        ({}, 5, 3),
        ({"offsets.topic.replication.factor": "2"}, 1, 2),
        (SHARED, 1, 3),
        ({**SHARED, "offsets.topic.replication.factor": "2"}, 1, 2),
    ],
)
def test_only_a_broker_that_shares_its_registry_with_nobody_makes_do_with_fewer_replicas(
    settings: dict[str, str], brokers: int, replicas: int
) -> None:
    assert replication_factor(BrokerConfig.load(overrides=settings), brokers) == replicas
