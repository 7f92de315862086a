"""ElectLeaders: make the preferred replica the leader, or any replica of a partition that has no leader.

Versions: 1 brought unclean elections and the error of the whole request, 2 the flexible encoding.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, string


class ElectTopic(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class ElectLeadersRequest(Request, api_key=43, versions="0-2", flexible="2+"):
    election_type: int = int8(versions="1+")  # 0 preferred, 1 unclean
    topic_partitions: list[ElectTopic] | None = array(ElectTopic, nullable="0+")  # null: all
    timeout_ms: int = int32(60000)


class PartitionElection(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionElection] = array(PartitionElection)


class ElectLeadersResponse(Response, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
