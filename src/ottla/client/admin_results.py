"""What the admin client answers, as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.client.records import TopicPartition


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. What is None is the broker's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionDescription:
    partition: int
    leader: int | None
    """The leader's broker id, or None while nobody leads."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class TopicDescription:
    name: str
    id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True)
class ConfigValue:
    value: str | None
    """None also where the broker does not tell, because it is a secret."""
    default: bool
    read_only: bool
    sensitive: bool


@dataclass(frozen=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True)
class Cluster:
    id: str
    controller: int | None
    brokers: tuple[Broker, ...]


@dataclass(frozen=True)
class Group:
    id: str
    state: str
    type: str
    """"classic" or "consumer" (KIP-848)."""


@dataclass(frozen=True)
class GroupMember:
    id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class GroupDescription:
    id: str
    state: str
    type: str
    assignor: str
    coordinator: int | None
    members: tuple[GroupMember, ...]
