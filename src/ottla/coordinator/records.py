"""The records of `__consumer_offsets`, in Kafka's own format.

A key is two bytes of type and the fields that identify the subject; a value is two bytes of version and its
fields. A record without a value is a tombstone: the subject is deleted. Since the topic is compacted, the
last record of each key is the state, and replaying the log restores it. Kafka's tools read our log, and we
read Kafka's.

The records of the classic protocol are one per committed offset and one per group. The consumer protocol
(KIP-848) has one per group, per member, per target assignment and per current assignment.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias

from ottla.coordinator.runtime.state import RecordCodec
from ottla.protocol.codec import Malformed, decode, encode
from ottla.protocol.schema import (
    Data,
    Struct,
    array,
    bytestring,
    int8,
    int32,
    int64,
    string,
    uuid,
)
from ottla.protocol.schema import struct as nested

_PREFIX = struct.Struct(">h")

# Offsets and classic groups


class OffsetCommitKey(Data, api_key=1, versions="0"):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Data, api_key=1, versions="0-4", flexible="4+"):
    offset: int = int64()
    leader_epoch: int = int32(-1, versions="3+")
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(-1, versions="1")
    topic_id: bytes = uuid(versions="4+", tag=0)


class GroupMetadataKey(Data, api_key=2, versions="0"):
    group: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="3+", nullable="3+")
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(-1, versions="1+")
    session_timeout: int = int32()
    subscription: bytes = bytestring()
    assignment: bytes = bytestring()


class GroupMetadataValue(Data, api_key=2, versions="0-4", flexible="4+"):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64(-1, versions="2+")
    members: list[MemberMetadata] = array(MemberMetadata)


# Groups of the consumer protocol (KIP-848)


class ConsumerGroupMetadataKey(Data, api_key=3, versions="0"):
    group_id: str = string()


class ConsumerGroupMetadataValue(Data, api_key=3, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64(0, tag=0)  # of the subscribed topics; another hash means they changed


class ConsumerGroupPartitionMetadataKey(Data, api_key=4, versions="0"):
    """Written by Kafka before 4.1; the hash in ConsumerGroupMetadataValue came in its place."""

    group_id: str = string()


class PartitionMetadata(Struct):
    partition: int = int32()
    racks: list[str] = array(string)


class TopicMetadata(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Data, api_key=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Data, api_key=5, versions="0"):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = bytestring()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Data, api_key=5, versions="0", flexible="0+"):
    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(-1)
    server_assignor: str | None = string(nullable="0+")
    # Set while a member of the group still speaks the classic protocol.
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Data, api_key=6, versions="0"):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Data, api_key=6, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Data, api_key=7, versions="0"):
    group_id: str = string()
    member_id: str = string()


class TargetTopicPartition(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Data, api_key=7, versions="0", flexible="0+"):
    topic_partitions: list[TargetTopicPartition] = array(TargetTopicPartition)


class ConsumerGroupCurrentMemberAssignmentKey(Data, api_key=8, versions="0"):
    group_id: str = string()
    member_id: str = string()


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = array(int32, None, nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Data, api_key=8, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupRegularExpressionKey(Data, api_key=16, versions="0"):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Data, api_key=16, versions="0", flexible="0+"):
    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


class Kind(NamedTuple):
    """A type of record: the classes of its key and value, and the version in which values are written."""

    key: type[Data]
    value: type[Data]
    version: int = 0


# Values are written in the versions that Kafka 4.3 writes.
_OFFSET_COMMIT = Kind(OffsetCommitKey, OffsetCommitValue, 4)
_OFFSET_COMMIT_THAT_EXPIRES = 1  # the only version that has a moment of expiry

KINDS: dict[int, Kind] = {
    0: _OFFSET_COMMIT,  # as old Kafkas wrote it; the fields are the same
    1: _OFFSET_COMMIT,
    2: Kind(GroupMetadataKey, GroupMetadataValue, 3),
    3: Kind(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: Kind(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: Kind(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: Kind(ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: Kind(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: Kind(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: Kind(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}

Entry: TypeAlias = tuple[Any, Any]
"""A key and its value (None: a tombstone), both decoded: what a command writes and `replay` takes."""


def encode_entry(entry: Entry) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in a record."""
    key, value = entry
    encoded = _PREFIX.pack(key.api_key) + b"".join(encode(key, 0))
    if value is None:
        return encoded, None
    version = KINDS[key.api_key].version
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp >= 0:
        version = _OFFSET_COMMIT_THAT_EXPIRES
    return encoded, _PREFIX.pack(version) + b"".join(encode(value, version))


def decode_entry(key: bytes | None, value: bytes | None) -> Entry | None:
    """What a record says; None for a type that is not known here, as a later Kafka may have written it.

    Malformed when the bytes are not what their type and version promise.
    """
    if key is None or len(key) < _PREFIX.size:
        raise Malformed("a record without a key")
    kind = KINDS.get(_PREFIX.unpack_from(key)[0])
    if kind is None:
        return None
    decoded = decode(kind.key, 0, memoryview(key), _PREFIX.size)
    if value is None:
        return decoded, None
    if len(value) < _PREFIX.size:
        raise Malformed("a value without a version")
    version = _PREFIX.unpack_from(value)[0]
    if version not in kind.value.versions:
        raise Malformed(f"{kind.value.__name__} has no version {version}")
    return decoded, decode(kind.value, version, memoryview(value), _PREFIX.size)


GROUP_RECORDS: RecordCodec[Entry] = RecordCodec(encode_entry, decode_entry)
