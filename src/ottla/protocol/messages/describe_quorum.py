"""DescribeQuorum: who keeps the cluster's state, who leads, and how far the others are.

Versions: 1 brought the times of fetches, 2 messages, the nodes and the ids of their folders.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string, uint16, uuid


class QuorumRequestPartition(Struct):
    partition_index: int = int32()


class QuorumRequestTopic(Struct):
    topic_name: str = string()
    partitions: list[QuorumRequestPartition] = array(QuorumRequestPartition)


class DescribeQuorumRequest(Request, api_key=55, versions="0-2", flexible="0+"):
    topics: list[QuorumRequestTopic] = array(QuorumRequestTopic)


class ReplicaState(Struct):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid(versions="2+")
    log_end_offset: int = int64()  # -1: unknown
    last_fetch_timestamp: int = int64(-1, versions="1+")
    last_caught_up_timestamp: int = int64(-1, versions="1+")


class QuorumPartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("", versions="2+", nullable="2+")
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class QuorumTopic(Struct):
    topic_name: str = string()
    partitions: list[QuorumPartition] = array(QuorumPartition)


class QuorumListener(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()


class QuorumNode(Struct):
    node_id: int = int32()
    listeners: list[QuorumListener] = array(QuorumListener)


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string("", versions="2+", nullable="2+")
    topics: list[QuorumTopic] = array(QuorumTopic)
    nodes: list[QuorumNode] = array(QuorumNode, versions="2+")
