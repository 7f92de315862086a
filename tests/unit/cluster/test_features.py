"""Features are switched on only when every broker supports the level."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import ottla.testing
from ottla.broker.data_folder import WrongFolder
from ottla.clock import SystemClock
from ottla.cluster import features, layout
from ottla.cluster.image import BrokerNode, ClusterImage, FeatureLevels
from ottla.cluster.registry import Set
from ottla.cluster.registry_backends import registry_at
from ottla.config.registry_url import parse_registry_url
from ottla.config.values import REGISTRY_FILE
from ottla.protocol.errors import ApiError, ErrorCode

VERSION = features.TRANSACTION_VERSION


def image(level: int, *supported: tuple[FeatureLevels, ...]) -> ClusterImage:
    """A cluster with a broker for each of these."""
    return ClusterImage.of(
        version=1,
        cluster_id="c",
        controller_id=1,
        brokers={
            number: BrokerNode(number, "h", 1, features=levels) for number, levels in enumerate(supported, 1)
        },
        topics={},
        configs={features.RESOURCE: {VERSION: str(level)}},
    )


def refusal(cluster: ClusterImage, wanted: int, kind: int = features.UPGRADE) -> str:
    with pytest.raises(ApiError) as refused:
        features.check_update(cluster, VERSION, wanted, kind)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    return refused.value.message


def test_a_level_is_refused_while_some_broker_does_not_support_it() -> None:
    now, before = features.REGISTERED, (FeatureLevels(VERSION, 0, 1),)
    features.check_update(image(0, now, now), VERSION, 2, features.UPGRADE)
    assert refusal(image(0, now, before, ()), 2).endswith("Brokers that do not support it: 2, 3.")
    features.check_update(image(0, now, before), VERSION, 1, features.UPGRADE)


def test_a_feature_can_be_switched_off_whatever_brokers_there_are() -> None:
    features.check_update(image(2, features.REGISTERED, ()), VERSION, 0, features.SAFE_DOWNGRADE)


def test_a_level_that_a_broker_no_longer_supports_is_refused() -> None:
    later = (FeatureLevels(VERSION, 2, 3),)
    assert "Brokers that do not support it: 2." in refusal(
        image(2, features.REGISTERED, later), 1, features.SAFE_DOWNGRADE
    )


def test_a_registration_tells_what_the_broker_supports() -> None:
    broker = BrokerNode(1, "h", 1, features=features.REGISTERED)
    value = layout.from_bytes(layout.broker_data(broker))
    assert value["features"] == [[VERSION, 0, 2]]


@pytest.mark.parametrize("level", [{VERSION: "3"}, {"a.later.feature": "1"}])
def test_a_broker_does_not_join_a_cluster_that_uses_more_than_it_supports(
    tmp_path: Path, level: dict[str, str]
) -> None:
    with ottla.testing.broker(data=tmp_path):
        pass

    async def raise_level() -> None:
        registry = registry_at(parse_registry_url(f"sqlite:{tmp_path / REGISTRY_FILE}"), SystemClock())
        await registry.open()
        path = layout.config_path(features.RESOURCE)
        await registry.commit([Set(path, layout.to_bytes(level))])
        await registry.close()

    asyncio.run(raise_level())
    broker = ottla.testing.broker(data=tmp_path)
    try:
        with pytest.raises(WrongFolder, match=f"{next(iter(level))}.*does not support"):
            broker.start()
    finally:
        broker.close()
