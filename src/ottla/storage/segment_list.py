"""Which files a log consisted of when it was closed: `segments-checkpoint` in the data folder.

That a segment is missing, or shorter than it was, cannot be told from the others: compaction leaves gaps
between offsets, and retention deletes the first segments. So a clean stop writes down what each log holds:
its start and end, the base offset of each segment and the sizes of its files, the id of its topic and the
checksum of its epochs' file. The next start compares. What a log holds changes as soon as it is used, so a
start that has compared throws the list away, except for what it says of logs that were found damaged: those
are not used, and the next start must find them damaged again.

The file carries a checksum of its own. Without it, as after a crash, a start has less to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from ottla.storage.checkpoints import TopicPartition, decode_topic_id, encode_topic_id
from ottla.storage.leader_epochs import CorruptCheckpoint

SEGMENTS = "segments-checkpoint"
NOT_KNOWN = -1
_VERSION = 0


class SegmentFiles(NamedTuple):
    """One segment: bytes of its files, 0 for one that is not there."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int


class LogFiles(NamedTuple):
    """One log as it was closed."""

    topic_id: bytes
    log_start_offset: int
    end_offset: int
    epochs_crc: int  # of the epochs' file; NOT_KNOWN when there need not be one
    segments: tuple[SegmentFiles, ...]


def encode(logs: Mapping[TopicPartition, LogFiles]) -> bytes:
    lines = []
    for (topic, partition), log in logs.items():
        segments = " ".join([f"{base}:{size}:{index}:{time}" for base, size, index, time in log.segments])
        lines.append(
            f"{topic} {partition} {encode_topic_id(log.topic_id)} {log.log_start_offset} {log.end_offset} "
            f"{log.epochs_crc} {segments}\n"
        )
    body = "".join(lines).encode()
    return b"%d\n%d\n" % (_VERSION, crc32c(body)) + body


def decode(data: bytes) -> dict[TopicPartition, LogFiles]:
    """The logs in the file. CorruptCheckpoint when it is damaged."""
    try:
        version, crc, body = data.split(b"\n", 2)
        if int(version) != _VERSION:
            raise CorruptCheckpoint(f"version {version!r}")
        if crc32c(body) != int(crc):
            raise CorruptCheckpoint("wrong CRC")
        logs = {}
        for line in body.decode().splitlines():
            topic, partition, topic_id, start, end, epochs_crc, *segments = line.split()
            logs[topic, int(partition)] = LogFiles(
                decode_topic_id(topic_id),
                int(start),
                int(end),
                int(epochs_crc),
                tuple(SegmentFiles(*map(int, segment.split(":"))) for segment in segments),
            )
    except (ValueError, TypeError) as problem:
        raise CorruptCheckpoint(str(problem)) from problem
    return logs
