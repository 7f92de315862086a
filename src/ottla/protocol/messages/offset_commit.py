"""OffsetCommit: a group writes down how far it has read.

Each partition gets the offset to go on from, the epoch of the record before it and a note of the member's
own. A member names itself and its generation (its epoch, in the consumer protocol), so that one that has been
replaced cannot move the group back; generation -1 is a simple consumer that assigned its partitions itself.

Versions: 3 brought throttling, 5 took away the retention time, 6 brought the leader epoch (KIP-320), 7 the
instance id of static members, 8 the flexible encoding, 9 the consumer protocol (KIP-848) and 10 topic ids in
place of names.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, versions="6+")
    committed_metadata: str | None = string(nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = string(versions="0-9")
    topic_id: bytes = uuid(versions="10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request, api_key=8, versions="2-10", flexible="8+"):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(-1)  # -1: not a member
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="7+", nullable="7+")
    retention_time_ms: int = int64(-1, versions="2-4")
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    name: str = string(versions="0-9")
    topic_id: bytes = uuid(versions="10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, api_key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: int = int32(versions="3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
