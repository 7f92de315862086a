"""What consumers send each other through a classic group: subscriptions and assignments.

The broker passes both on as they are. It looks inside only to know which topics a group reads, and to tell
people what moved in a rebalance. The two bytes of version in front are not part of the data declared here;
later versions only add fields, so an unknown one is read as the newest known.

Versions of the subscription: 1 brought the partitions owned, 2 the generation they were given in, 3 the rack.
"""

from __future__ import annotations

from struct import Struct as Layout

from ottla.protocol.codec import Malformed, decode, encode
from ottla.protocol.schema import Data, Struct, array, bytestring, int32, string

_VERSION = Layout(">h")


class TopicPartition(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Data, versions="0-3"):
    topics: list[str] = array(string)
    user_data: bytes | None = bytestring(None, nullable="0+")
    owned_partitions: list[TopicPartition] = array(TopicPartition, versions="1+")
    generation_id: int = int32(-1, versions="2+")
    rack_id: str | None = string(None, versions="3+", nullable="3+")


class ConsumerProtocolAssignment(Data, versions="0-3"):
    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = bytestring(None, nullable="0+")


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Malformed when it is none."""
    return decode(ConsumerProtocolSubscription, _version(data), memoryview(data), _VERSION.size)


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Malformed when it is none."""
    return decode(ConsumerProtocolAssignment, _version(data), memoryview(data), _VERSION.size)


def write_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    return _VERSION.pack(version) + b"".join(encode(subscription, version))


def write_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    return _VERSION.pack(version) + b"".join(encode(assignment, version))


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise Malformed("no version in front")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise Malformed(f"version {version} is negative")
    return min(version, 3)
