"""The small files of a data folder, in Kafka's formats, kept by whole-file replacement.

* `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint`: one
  offset per partition;
* `.kafka_cleanshutdown`: there only while the broker is down after a proper stop;
* `meta.properties`: which cluster and node the folder belongs to;
* `partition.metadata` in each partition's folder: the id of its topic;
* `checkpoint-sums`, ours: the checksums of the files with offsets, whose format has none.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping

from crc32c import crc32c

from ottla.storage.leader_epochs import CorruptCheckpoint

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
CHECKPOINT_SUMS = "checkpoint-sums"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META = "meta.properties"
META_KEYS = ("cluster.id", "node.id")
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"
# Ours, empty: the topic was compacted at some time, so offsets may be missing without anything being wrong.
COMPACTED = ".compacted"
# Its content when a follower got batches with gaps between them: the active segment may have gaps, too.
REPLICATED_GAPS = b"gaps in replicated batches\n"

TopicPartition = tuple[str, int]
_BITS_OF_A_CHARACTER = 6
_LIST_ID = "segmentsCheckpointId"


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    if not data:
        return {}  # Kafka makes the file before it has anything to write
    try:
        version, count, *rest = data.decode().splitlines()
        offsets = {}
        for line in rest:
            if line:
                topic, partition, offset = line.split()
                offsets[topic, int(partition)] = int(offset)
        if int(version) != 0 or int(count) != len(offsets):
            raise CorruptCheckpoint(f"version {version}, {count} entries announced, {len(offsets)} there")
    except (ValueError, UnicodeDecodeError) as problem:
        raise CorruptCheckpoint(str(problem)) from problem
    return offsets


class CheckpointSums:
    """Checksums of the checkpoint files, which have no place for their own: the newest and the one before."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, ...]] = {}

    def note(self, name: str, data: bytes) -> None:
        """`data` is about to be the content of a file."""
        self._sums[name] = (*self._sums.get(name, ())[-1:], crc32c(data))

    def forget(self, name: str) -> None:
        self._sums.pop(name, None)

    def knows(self, name: str) -> bool:
        return name in self._sums

    def fits(self, name: str, data: bytes) -> bool:
        """Whether a file with this content is one that was written; True when nothing is known of it."""
        return name not in self._sums or crc32c(data) in self._sums[name]

    def encode(self) -> bytes:
        body = "".join(f"{name} {' '.join(map(str, sums))}\n" for name, sums in self._sums.items()).encode()
        return b"%d\n" % crc32c(body) + body

    @classmethod
    def decode(cls, data: bytes) -> CheckpointSums:
        found = cls()
        try:
            crc, body = data.split(b"\n", 1)
            if int(crc) != crc32c(body):
                raise CorruptCheckpoint("wrong CRC")
            for line in body.decode().splitlines():
                name, *sums = line.split()
                found._sums[name] = tuple(map(int, sums))
        except ValueError as problem:
            raise CorruptCheckpoint(str(problem)) from problem
        return found


def encode_topic_id(topic_id: bytes) -> str:
    """A topic id as people and files write it: base64 without padding."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def decode_topic_id(text: str) -> bytes:
    topic_id = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(topic_id) != 16:
        raise CorruptCheckpoint(f"{text!r} is no topic id")
    return topic_id


def differs_by_damage(topic_id: bytes, expected: bytes) -> bool:
    """Whether an id is another one with a flipped bit in its text. Drawn ids differ in some 60 bits."""
    different = int.from_bytes(topic_id, "big") ^ int.from_bytes(expected, "big")
    return 0 < different.bit_count() <= _BITS_OF_A_CHARACTER


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """The topic id in a `partition.metadata` file."""
    try:
        pairs = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
        if pairs["version"] != "0":
            raise CorruptCheckpoint(f"version {pairs['version']}")
        return decode_topic_id(pairs["topic_id"].strip())
    except (ValueError, KeyError, UnicodeDecodeError) as problem:
        raise CorruptCheckpoint(f"no topic id in {data!r}") from problem


def encode_clean_shutdown(broker_epoch: int, list_id: str) -> bytes:
    """Kafka's marker of a clean stop, with a field of ours that Kafka ignores: which list it belongs to."""
    content = {"version": 0, "brokerEpoch": broker_epoch, _LIST_ID: list_id}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_list_id(data: bytes) -> str | None:
    """The list of segments that a marker of a clean stop belongs to; None when Ottla did not write it."""
    try:
        content = json.loads(data)
    except ValueError:
        return None
    found = content.get(_LIST_ID) if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def decode_properties(data: bytes) -> dict[str, str]:
    """A Java properties file of plain `key=value` lines; CorruptCheckpoint when it is no text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise CorruptCheckpoint("is not text") from problem
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def encode_properties(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()
