"""ConsumerGroupHeartbeat: the one request by which a member lives in a group of the consumer protocol.

It joins (epoch 0), stays, tells what it owns and leaves (epoch -1, or -2 for a static member that comes back)
with it, and the broker answers what the member shall own (KIP-848). A null field has not changed since the
last heartbeat; a null assignment likewise.

Versions: 1 brought subscription by regular expression, and from then on members make their own id.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string, struct, uuid


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(None, nullable="0+")
    rack_id: str | None = string(None, nullable="0+")
    rebalance_timeout_ms: int = int32(-1)
    subscribed_topic_names: list[str] | None = array(string, None, nullable="0+")
    subscribed_topic_regex: str | None = string(None, versions="1+", nullable="1+")
    server_assignor: str | None = string(None, nullable="0+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, None, nullable="0+")  # owned


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")
    member_id: str | None = string(None, nullable="0+")
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = struct(Assignment, nullable="0+")
