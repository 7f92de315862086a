"""AlterPartitionReassignments: on which brokers the replicas of partitions are to be.

Versions: 1 lets a client forbid that the number of replicas changes.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, string


class ReassignablePartition(Struct):
    partition_index: int = int32()
    replicas: list[int] | None = array(int32, None, nullable="0+")  # null: cancel what is under way


class ReassignableTopic(Struct):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Request, api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int = int32(60000)
    allow_replication_factor_change: bool = boolean(True, versions="1+")
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Response, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(True, versions="1+")
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
