"""ListOffsets: the offset that belongs to a time, or to an end, of a partition's log.

A timestamp asks for the first record at or after it. Negative ones have a meaning: -1 the end, -2 the
start, -3 the record with the highest timestamp (from version 7 on); -4 to -6 concern remote storage (8, 9
and 11).

Versions: 2 brought the isolation level and the throttle time, 4 leader epochs, 5 OFFSET_NOT_AVAILABLE, 6
the flexible encoding, 10 a time limit.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Struct):
    partition_index: int = int32()
    current_leader_epoch: int = int32(-1, versions="4+")  # as the client knows it; -1: do not check
    timestamp: int = int64()  # or one of the negative numbers above


class ListOffsetsTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Request, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = int32()  # of the follower; -1: a consumer, which sees nothing above the high watermark
    isolation_level: int = int8(versions="2+")  # 1: the end is the last stable offset
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(versions="10+")  # how long a look into remote storage may take


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(-1)
    offset: int = int64(-1)  # -1: no such record
    leader_epoch: int = int32(-1, versions="4+")  # of the record found


class ListOffsetsTopicResponse(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Response, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = int32(versions="2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
