"""What each log consisted of when it was closed: `segments-checkpoint` in the data folder.

A missing or shortened segment cannot be recognised from the other segments alone: compaction leaves gaps
between offsets, and retention deletes the first segments. So a clean stop writes down what each log holds:
its start and end, its leader epochs, the sizes and the largest timestamp of each segment, the id of its
topic. The next start compares the files with that. Where all of them fit, the list also says everything that
a start needs to know, and no file of the log has to be read before it is used (`clean_open`).

What a log holds changes as soon as it is used, so a start that has compared removes the list, except for the
entries of logs that were found damaged: those are not used, and the next start must find them damaged again.

The file carries its own checksum, and an id that ties it to the clean stop that wrote it (`clean_stop`).
Without it, as after a crash, a start has less to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from crc32c import crc32c

from ottla.storage.checkpoints import TopicPartition, decode_topic_id, encode_topic_id
from ottla.storage.leader_epochs import CorruptCheckpoint

SEGMENTS = "segments-checkpoint"
_VERSION = 2
_UNKNOWN = ""


class SegmentFiles(NamedTuple):
    """One segment: bytes of its files (0 for one that is not there), and its newest record, if known."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int
    max_timestamp: int | None
    max_timestamp_offset: int
    transaction_index_size: int = 0


class LogFiles(NamedTuple):
    """One log as it was closed."""

    topic_id: bytes
    log_start_offset: int
    end_offset: int
    has_snapshot: bool  # of its producers, at its end; otherwise it has no producers
    has_epochs_file: bool
    epochs: tuple[tuple[int, int], ...]  # leader epochs and where they begin
    segments: tuple[SegmentFiles, ...]


def encode(list_id: str, logs: Mapping[TopicPartition, LogFiles]) -> bytes:
    lines = [f"{list_id}\n"]
    for (topic, partition), log in logs.items():
        epochs = ",".join([f"{epoch}:{start}" for epoch, start in log.epochs]) or "-"
        segments = " ".join([_encode_segment(segment) for segment in log.segments])
        lines.append(
            f"{topic} {partition} {encode_topic_id(log.topic_id)} {log.log_start_offset} {log.end_offset} "
            f"{log.has_snapshot:d} {log.has_epochs_file:d} {epochs} {segments}\n"
        )
    body = "".join(lines).encode()
    return b"%d\n%d\n" % (_VERSION, crc32c(body)) + body


def _encode_segment(segment: SegmentFiles) -> str:
    base, size, index_size, time_index_size, timestamp, offset, transaction_index_size = segment
    newest = _UNKNOWN if timestamp is None else str(timestamp)
    aborted = f":{transaction_index_size}" if transaction_index_size else ""
    return f"{base}:{size}:{index_size}:{time_index_size}:{newest}:{offset}{aborted}"


def decode(data: bytes) -> tuple[str, dict[TopicPartition, LogFiles]]:
    """The id of the list and the logs in it. CorruptCheckpoint when it is damaged."""
    topic_id_of = cache(decode_topic_id)  # the partitions of a topic share it
    try:
        version, crc, body = data.split(b"\n", 2)
        if int(version) != _VERSION:
            raise CorruptCheckpoint(f"version {int(version)} is not {_VERSION}")
        if crc32c(body) != int(crc):
            raise CorruptCheckpoint("wrong CRC")
        logs = {}
        list_id, *lines = body.decode().splitlines()
        for line in lines:
            topic, partition, topic_id, start, end, snapshot, epochs_file, epochs, *segments = line.split()
            logs[topic, int(partition)] = LogFiles(
                topic_id_of(topic_id),
                int(start),
                int(end),
                snapshot == "1",
                epochs_file == "1",
                _decode_epochs(epochs),
                tuple([_decode_segment(segment) for segment in segments]),
            )
    except (ValueError, TypeError) as problem:
        raise CorruptCheckpoint(str(problem)) from problem
    return list_id, logs


def _decode_epochs(text: str) -> tuple[tuple[int, int], ...]:
    if text == "-":
        return ()
    pairs = [pair.split(":") for pair in text.split(",")]
    return tuple([(int(epoch), int(start)) for epoch, start in pairs])


def _decode_segment(text: str) -> SegmentFiles:
    base, size, index_size, time_index_size, timestamp, offset, *aborted = text.split(":")
    newest = None if timestamp == _UNKNOWN else int(timestamp)
    return SegmentFiles(
        int(base),
        int(size),
        int(index_size),
        int(time_index_size),
        newest,
        int(offset),
        int(aborted[0]) if aborted else 0,
    )
