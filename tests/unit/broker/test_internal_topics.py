"""How many replicas the topics of coordinators get."""

from __future__ import annotations

import pytest

from ottla.broker.internal_topics import offsets_topic, transaction_topic
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
    config = BrokerConfig.load(overrides=settings)
    assert offsets_topic(config, brokers).replication_factor == replicas
    of_transactions = {
        key.replace("offsets.topic", "transaction.state.log"): value for key, value in settings.items()
    }
    config = BrokerConfig.load(overrides=of_transactions)
    assert transaction_topic(config, brokers).replication_factor == replicas
