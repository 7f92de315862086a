"""Creates `__consumer_offsets` at the first request for a coordinator.

It is compacted, so that it keeps the last record of each key. The replication factor is the configured one.
Where none is configured it is the default, or the number of brokers if that is smaller: a single broker has
groups too.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ottla.broker.ports import ChannelAccess, Configuration, GroupAccess, ImageAccess, ImageFollowing
from ottla.cluster.topic_rules import NewTopic
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("ottla.groups")


class OffsetsTopicCreation(ChannelAccess, Configuration, GroupAccess, ImageAccess, ImageFollowing, Protocol):
    """The topic is created by the controller, and its partitions are loaded by the group coordinator."""


async def make_offsets_topic(broker: OffsetsTopicCreation) -> None:
    """Returns when the topic is there and what is led here is loaded. ApiError if it cannot be made."""
    config = broker.config
    replicas: int = config["offsets.topic.replication.factor"]
    if config.is_default("offsets.topic.replication.factor"):
        replicas = min(replicas, max(len(broker.image.brokers), 1))
    new = NewTopic(
        OFFSETS_TOPIC,
        partitions=config["offsets.topic.num.partitions"],
        replication_factor=replicas,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )
    try:
        outcome = await broker.channel.create_topics([new])
        (result,) = outcome.results
    except ApiError as error:
        result = error
    if isinstance(result, ApiError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        logger.error("%s cannot be created, groups have no coordinator: %s", OFFSETS_TOPIC, result.message)
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    await broker.caught_up(outcome.version)
    await broker.groups.loading_done()
