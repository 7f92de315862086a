"""Fetch: a consumer or a follower reads record batches from given offsets, and waits for new ones.

The broker answers as soon as `min_bytes` are there or `max_wait_ms` have passed. It answers with whole
batches as they lie in the log, at least one if there is any, even above the limits. With a fetch session
(KIP-227) the broker remembers the partitions, and requests and responses name only what changed.

Versions: 4 brought the isolation level, 5 the log start offset, 7 sessions, 9 the leader epoch (KIP-320),
10 zstd, 11 reading from a near replica, 12 the flexible encoding and the truncation of followers by epoch,
13 topic ids in place of names, 15 the replica state in place of the replica id, 16 endpoints of new
leaders, 17 the directory id, 18 the follower's high watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ottla.protocol.schema import (
    Buffer,
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ReplicaState(Struct):
    replica_id: int = int32(-1)
    replica_epoch: int = int64(-1)


class FetchPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(-1, versions="9+")  # as the client knows it; -1: do not check
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(-1, versions="12+")  # epoch of the last record the follower has; -1: none
    log_start_offset: int = int64(-1, versions="5+")  # the follower's own; -1 from consumers
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(versions="17+", tag=0)
    # The follower's own; the default means that it does not tell.
    high_watermark: int = int64(0x7FFFFFFFFFFFFFFF, versions="18+", tag=1)


class FetchTopic(Struct):
    topic: str = string(versions="0-12")
    topic_id: bytes = uuid(versions="13+")
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    topic: str = string(versions="0-12")
    topic_id: bytes = uuid(versions="13+")
    partitions: list[int] = array(int32)


class FetchRequest(Request, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = string(None, versions="12+", nullable="12+", tag=0)  # checked if known
    replica_id: int = int32(-1, versions="0-14")  # of the follower; -1: a consumer
    # Who the follower is, from version 15 on.
    replica_state: ReplicaState = struct(ReplicaState, versions="15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(0x7FFFFFFF)
    isolation_level: int = int8()  # 0: up to the high watermark, 1: up to the last stable offset
    session_id: int = int32(versions="7+")  # 0: no session, or a new one
    session_epoch: int = int32(-1, versions="7+")  # 0: make a session, -1: close it, else the next step of it
    topics: list[FetchTopic] = array(FetchTopic)
    # Partitions to take out of the session.
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+")
    rack_id: str = string(versions="11+")  # of the consumer


class EpochEndOffset(Struct):
    epoch: int = int32(-1)
    end_offset: int = int64(-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(-1)
    leader_epoch: int = int32(-1)


class SnapshotId(Struct):
    end_offset: int = int64(-1)
    epoch: int = int32(-1)


class AbortedTransaction(Struct):
    producer_id: int = int64()
    first_offset: int = int64()


class Aborted(Protocol):
    """What is written as an `AbortedTransaction`. There may be very many, so that they are not made anew."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


class PartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(-1)  # below it no transaction is open
    log_start_offset: int = int64(-1, versions="5+")
    # Where the follower must truncate, if its log differs.
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, versions="12+", tag=0)
    # Whom to ask instead, after an epoch or leader error.
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, versions="12+", tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, versions="12+", tag=2)  # only of the metadata quorum
    # Null unless the isolation level is 1.
    aborted_transactions: Sequence[Aborted] | None = array(AbortedTransaction, nullable="0+")
    preferred_read_replica: int = int32(-1, versions="11+")  # -1: stay here
    records: Buffer | None = records(nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = string(versions="0-12")
    topic_id: bytes = uuid(versions="13+")
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(None, nullable="0+")


class FetchResponse(Response, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="7+")  # of the session as a whole
    session_id: int = int32(versions="7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    # Where the leaders named above live.
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0)
