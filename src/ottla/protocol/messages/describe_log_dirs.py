"""DescribeLogDirs: the broker's data folders, how full they are and what partitions take in them.

Versions: 2 brought the flexible encoding, 3 an error for the whole response, 4 the size of the volume, 5
whether the folder takes no new partitions.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class DescribeLogDirsRequest(Request, api_key=35, versions="1-5", flexible="2+"):
    # Null: all of them.
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32()
    partition_size: int = int64()
    # How far the replica is behind the high watermark, or behind the log it will replace.
    offset_lag: int = int64()
    is_future_key: bool = boolean()  # true while the replica moves to this folder


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(-1, versions="4+")  # of the volume; -1: unknown
    usable_bytes: int = int64(-1, versions="4+")  # of the volume; -1: unknown
    is_cordoned: bool = boolean(versions="5+")  # true if no new partitions are put here


class DescribeLogDirsResponse(Response, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
