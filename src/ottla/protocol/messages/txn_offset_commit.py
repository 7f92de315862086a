"""TxnOffsetCommit: offsets of a group that count when the transaction commits.

Versions: 2 brought the leader epoch, 3 the member with its generation and the flexible encoding, 4
TRANSACTION_ABORTABLE, 5 adds the group to the transaction by itself (KIP-890, part 2).
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, versions="2+")
    committed_metadata: str | None = string(nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Request, api_key=28, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(-1, versions="3+")
    member_id: str = string(versions="3+")
    group_instance_id: str | None = string(None, versions="3+", nullable="3+")
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
