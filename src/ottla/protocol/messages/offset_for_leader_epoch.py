"""OffsetForLeaderEpoch: where the records of a leader epoch end in the leader's log (KIP-101, KIP-320).

Followers and consumers that have records of that epoch beyond the end must throw them away: another leader
wrote something else there.

Versions: 2 brought the current leader epoch, 3 the replica id, 4 the flexible encoding.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string


class OffsetForLeaderPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(-1)  # as the client knows it; -1: do not check
    leader_epoch: int = int32()  # the epoch asked about


class OffsetForLeaderTopic(Struct):
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Request, api_key=23, versions="2-4", flexible="4+"):
    replica_id: int = int32(-2, versions="3+")  # of the follower; -1: a consumer, -2: one that may see all
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class EpochEndOffset(Struct):
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(-1)  # the one asked about, or the last one before it that has records
    end_offset: int = int64(-1)  # the offset after its last record; -1: unknown


class OffsetForLeaderTopicResult(Struct):
    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Response, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = int32()
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
