"""Creates `__consumer_offsets` and `__transaction_state` at the first request for such a coordinator.

They are compacted, so that they keep the last record of each key. The replication factor is the configured
one. While the cluster has fewer brokers the topic is not created, and clients get COORDINATOR_NOT_AVAILABLE
and try again, as from Kafka: offsets on fewer brokers than configured would stay there. A broker that shares
its registry with nobody is the exception: where no factor is configured it coordinates without others.
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
    TransactionAccess,
)
from ottla.cluster.topic_rules import NewTopic
from ottla.config.values import BrokerConfig
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("ottla.coordinator")

_SEARCH_SECONDS = 1.0
"""So long a controller is looked for. Clients ask again, and the connection of one is free meanwhile."""
_TIMEOUT_SECONDS = 5.0


class InternalTopicCreation(
    ChannelAccess,
    ClientLogging,
    Configuration,
    GroupAccess,
    ImageAccess,
    ImageFollowing,
    TransactionAccess,
    Protocol,
):
    """Topics are created by the controller, and their partitions are loaded by the coordinators."""


async def make_offsets_topic(broker: InternalTopicCreation) -> None:
    """Returns when the topic is there and what is led here is loaded. ApiError if it cannot be made."""
    await _make(broker, offsets_topic(broker.config, len(broker.image.brokers)))
    await broker.groups.loading_done()


async def make_transaction_topic(broker: InternalTopicCreation) -> None:
    """The same for the topic of transactions."""
    await _make(broker, transaction_topic(broker.config, len(broker.image.brokers)))
    await broker.transactions.loading_done()


def offsets_topic(config: BrokerConfig, brokers: int) -> NewTopic:
    """In a cluster with so many brokers now."""
    return NewTopic(
        OFFSETS_TOPIC,
        partitions=config["offsets.topic.num.partitions"],
        replication_factor=_replication_factor(config, "offsets.topic.replication.factor", brokers),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )


def transaction_topic(config: BrokerConfig, brokers: int) -> NewTopic:
    """Its records must never be lost, so no replica that lacks some may lead."""
    return NewTopic(
        TRANSACTION_TOPIC,
        partitions=config["transaction.state.log.num.partitions"],
        replication_factor=_replication_factor(config, "transaction.state.log.replication.factor", brokers),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "min.insync.replicas": str(config["transaction.state.log.min.isr"]),
            "unclean.leader.election.enable": "false",
        },
    )


async def _make(broker: InternalTopicCreation, new: NewTopic) -> None:
    try:
        outcome = await broker.channel.create_topics([new], timeout=_TIMEOUT_SECONDS, search=_SEARCH_SECONDS)
    except ApiError as error:
        raise _refused(broker, new.name, error) from error
    (result,) = outcome.results
    if isinstance(result, ApiError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise _refused(broker, new.name, result)
    await broker.caught_up(outcome.version)


def _replication_factor(config: BrokerConfig, key: str, brokers: int) -> int:
    configured: int = config[key]
    is_alone = config.is_default("ottla.registry") and config.is_default(key)
    return min(configured, max(brokers, 1)) if is_alone else configured


def _refused(broker: InternalTopicCreation, topic: str, why: ApiError) -> ApiError:
    """Clients ask again several times a second, so the line is one of those that are limited."""
    broker.client_log.log(
        logger,
        logging.ERROR,
        topic,
        "%s cannot be created, so clients find no coordinator: %s",
        topic,
        why.message or why.code.name,
    )
    return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
