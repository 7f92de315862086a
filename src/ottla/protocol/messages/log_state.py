"""DescribeLogState and CompactLogs: what a log on disk is like, and the order to compact it now.

Ours, not Kafka's: its protocol reports the size of a log and nothing more. The keys lie far above Kafka's; a
client that does not know them has no use for them, and a broker that does not know them does not offer them.
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    float64,
    int16,
    int32,
    int64,
    string,
)


class LogStateTopic(Struct):
    name: str = string()
    partitions: list[int] = array(int32)


class DescribeLogStateRequest(Request, api_key=1000, versions="0", flexible="0+"):
    topics: list[LogStateTopic] = array(LogStateTopic)


class LogStatePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")
    size: int = int64()
    segments: int = int32()
    is_compacted: bool = boolean()  # its cleanup.policy says so
    clean_bytes: int = int64()
    dirty_bytes: int = int64()  # of closed segments that may be compacted
    first_dirty_offset: int = int64()
    is_running: bool = boolean()
    is_asked_for: bool = boolean()
    bytes_read: int = int64()
    bytes_to_read: int = int64()
    passes: int = int32()  # since the broker started
    last_finished_ms: int = int64(-1)  # -1: not since the broker started
    last_seconds: float = float64()
    last_bytes_before: int = int64()
    last_bytes_after: int = int64()
    uncleanable: str | None = string(None, nullable="0+")
    problem: str | None = string(None, nullable="0+")


class LogStateTopicResult(Struct):
    name: str = string()
    partitions: list[LogStatePartition] = array(LogStatePartition)


class DescribeLogStateResponse(Response, api_key=1000, versions="0", flexible="0+"):
    free_bytes: int = int64(-1)
    min_free_bytes: int = int64()
    refuses_writes: bool = boolean()
    topics: list[LogStateTopicResult] = array(LogStateTopicResult)


class CompactLogsRequest(Request, api_key=1001, versions="0", flexible="0+"):
    topics: list[LogStateTopic] = array(LogStateTopic)


class CompactLogsPartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")


class CompactLogsTopic(Struct):
    name: str = string()
    partitions: list[CompactLogsPartition] = array(CompactLogsPartition)


class CompactLogsResponse(Response, api_key=1001, versions="0", flexible="0+"):
    topics: list[CompactLogsTopic] = array(CompactLogsTopic)
