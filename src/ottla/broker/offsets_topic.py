"""Creates `__consumer_offsets` at the first request for a coordinator.

It is compacted, so that it keeps the last record of each key. The replication factor is the configured one.
While the cluster has fewer brokers the topic is not created, and clients get COORDINATOR_NOT_AVAILABLE and
try again, as from Kafka: offsets on fewer brokers than configured would stay there. A broker that shares its
registry with nobody is the exception: where no factor is configured it has groups without other brokers.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ottla.broker.ports import (
    ChannelAccess,
    ClientLogging,
    Configuration,
    GroupAccess,
    ImageAccess,
    ImageFollowing,
)
from ottla.cluster.topic_rules import NewTopic
from ottla.config.values import BrokerConfig
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("ottla.groups")

_SEARCH_SECONDS = 1.0
"""So long a controller is looked for. Clients ask again, and the connection of one is free meanwhile."""
_TIMEOUT_SECONDS = 5.0


class OffsetsTopicCreation(
    ChannelAccess, ClientLogging, Configuration, GroupAccess, ImageAccess, ImageFollowing, Protocol
):
    """The topic is created by the controller, and its partitions are loaded by the group coordinator."""


async def make_offsets_topic(broker: OffsetsTopicCreation) -> None:
    """Returns when the topic is there and what is led here is loaded. ApiError if it cannot be made."""
    config = broker.config
    new = NewTopic(
        OFFSETS_TOPIC,
        partitions=config["offsets.topic.num.partitions"],
        replication_factor=replication_factor(config, len(broker.image.brokers)),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )
    try:
        outcome = await broker.channel.create_topics([new], timeout=_TIMEOUT_SECONDS, search=_SEARCH_SECONDS)
    except ApiError as error:
        raise _refused(broker, error) from error
    (result,) = outcome.results
    if isinstance(result, ApiError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise _refused(broker, result)
    await broker.caught_up(outcome.version)
    await broker.groups.loading_done()


def replication_factor(config: BrokerConfig, brokers: int) -> int:
    """Of the topic, in a cluster with so many brokers now."""
    configured: int = config["offsets.topic.replication.factor"]
    is_alone = config.is_default("ottla.registry") and config.is_default("offsets.topic.replication.factor")
    return min(configured, max(brokers, 1)) if is_alone else configured


def _refused(broker: OffsetsTopicCreation, why: ApiError) -> ApiError:
    """Clients ask again several times a second, so the line is one of those that are limited."""
    broker.client_log.log(
        logger,
        logging.ERROR,
        OFFSETS_TOPIC,
        "%s cannot be created, groups have no coordinator: %s",
        OFFSETS_TOPIC,
        why.message or why.code.name,
    )
    return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
