"""From configuration to what the server and the controller are bound by."""

from __future__ import annotations

from ottla.broker.server import Limits
from ottla.cluster.elections import ElectionSettings
from ottla.cluster.topic_rules import TopicDefaults
from ottla.config.values import BrokerConfig
from ottla.coordinator.group import GroupSettings
from ottla.storage.descriptors import descriptors_for_clients

_LEAST_FOR_INSPECTIONS = 4 * 1024 * 1024


def limits_of(config: BrokerConfig) -> Limits:
    return Limits(
        max_frame=config["socket.request.max.bytes"],
        max_connections=config["max.connections"],
        descriptors=descriptors_for_clients(),
        max_connections_per_address=config["max.connections.per.ip"],
        address_overrides=_overrides(config["max.connections.per.ip.overrides"]),
        request_memory=_or_endless(config["queued.max.request.bytes"]),
        receive_buffer=config["socket.receive.buffer.bytes"],
        send_buffer=config["socket.send.buffer.bytes"],
        idle_seconds=_or_endless(config["connections.max.idle.ms"]) / 1000,
    )


def client_memory_limits(config: BrokerConfig) -> tuple[int, int]:
    """What may be kept for clients in all, and the share of one address."""
    limit = config["client.memory.max.bytes"]
    if limit < 0:
        limit = _or_endless(config["queued.max.request.bytes"])
    share = config["client.memory.max.bytes.per.ip"]
    return limit, limit // 2 if share < 0 else share


def inspection_memory(config: BrokerConfig) -> int:
    """What batches may take that wait to be opened, beside `queued.max.request.bytes`."""
    return max(_or_endless(config["queued.max.request.bytes"]) // 8, _LEAST_FOR_INSPECTIONS)


def _or_endless(limit: int) -> int:
    """Kafka writes "no limit" as a negative number."""
    return limit if limit >= 0 else 2**62


def _overrides(text: str) -> dict[str, int]:
    """`host:limit,host:limit`; addresses of version 6 hold colons themselves."""
    pairs = (entry.rpartition(":") for entry in text.split(",") if entry.strip())
    return {address.strip(" []"): int(limit) for address, _, limit in pairs}


def group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        min_session_timeout_ms=config["group.min.session.timeout.ms"],
        max_session_timeout_ms=config["group.max.session.timeout.ms"],
        max_size=config["group.max.size"],
        offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
        offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
    )


def topic_defaults(config: BrokerConfig) -> TopicDefaults:
    return TopicDefaults(
        partitions=config["num.partitions"],
        replication_factor=config["default.replication.factor"],
        max_partitions=config["max.partitions"],
        offsets_partitions=config["offsets.topic.num.partitions"],
        transaction_partitions=config["transaction.state.log.num.partitions"],
        max_configured_groups=config["max.configured.groups"],
        min_insync_replicas=config["min.insync.replicas"],
        unclean_elections=config["unclean.leader.election.enable"],
    )


def election_settings(config: BrokerConfig) -> ElectionSettings:
    interval = config["leader.imbalance.check.interval.seconds"]
    return ElectionSettings(
        session_timeout=config["broker.session.timeout.ms"] / 1000,
        balance_interval=interval if config["auto.leader.rebalance.enable"] else None,
    )
