"""From an answer to a plain value that two brokers can share.

Brokers may choose their own ids and live at their own time and place. `normalise` replaces what may rightly
differ with a word for what it is: a topic id by its topic, a producer id by its rank of allocation, the
current time by "<now>", ports, session ids and folders by their kind. All else stays as it is, down to each
header of each batch.
"""

from __future__ import annotations

import re
import struct
import time
from typing import Any

from differential.peer import Closed, Peer, Silence
from ottla.protocol.batches import HEADER_SIZE, BatchHeader, crc_matches, headers
from ottla.protocol.schema import ZERO_UUID

_TIMES = {
    "base_timestamp", "log_append_time_ms", "max_timestamp", "timestamp", "last_timestamp",
    "last_fetch_timestamp", "last_caught_up_timestamp",
}  # fmt: skip
_TIME_RANGE = re.compile(r"\[-?\d{13,}, \d{13,}\]")
_BY_NAME = {"DescribeConfigsResult.configs", "CreatableTopicResult.configs"}
"""Arrays of which each element has a name of its own: compared name by name."""

_SETS: dict[str, tuple[str, ...]] = {
    # Arrays that Kafka fills from hash maps: their order says nothing, so they are compared sorted.
    "MetadataResponse.topics": ("name", "topic_id"),
    "DescribeLogDirsResult.topics": ("name",),
    "DescribeLogDirsTopic.partitions": ("partition_index",),
    "ProduceResponse.responses": ("name", "topic_id"),
    "TopicProduceResponse.partition_responses": ("index",),
    "ListOffsetsResponse.topics": ("name",),
    "ListOffsetsTopicResponse.partitions": ("partition_index",),
    "DeleteRecordsResponse.topics": ("name",),
    "DeleteRecordsTopicResult.partitions": ("partition_index",),
    "CreateTopicsResponse.topics": ("name",),
    "DeleteTopicsResponse.responses": ("name", "topic_id"),
    "CreatePartitionsResponse.results": ("name",),
    "AlterConfigsResponse.responses": ("resource_type", "resource_name"),
    "IncrementalAlterConfigsResponse.responses": ("resource_type", "resource_name"),
    "OffsetForLeaderEpochResponse.topics": ("topic",),
    "OffsetForLeaderTopicResult.partitions": ("partition",),
    "ApiVersionsResponse.api_keys": ("api_key",),
    "ListConfigResourcesResponse.config_resources": ("resource_type", "resource_name"),
    "DescribeGroupsResponse.groups": ("group_id",),
    "DeleteGroupsResponse.results": ("group_id",),
    "OffsetFetchResponse.topics": ("name",),
    "OffsetFetchResponseGroup.topics": ("name", "topic_id"),
    "OffsetCommitResponse.topics": ("name", "topic_id"),
    "AddPartitionsToTxnResponse.results_by_topic_v3_and_below": ("name",),
    "AddPartitionsToTxnResponse.results_by_transaction": ("transactional_id",),
    "AddPartitionsToTxnResult.topic_results": ("name",),
    "AddPartitionsToTxnTopicResult.results_by_partition": ("partition_index",),
    "TxnOffsetCommitResponse.topics": ("name",),
    "PartitionResponse.active_producers": ("producer_id",),
    "WriteTxnMarkersResponse.markers": ("producer_id",),
    "WritableTxnMarkerResult.topics": ("name",),
    "WritableTxnMarkerTopicResult.partitions": ("partition_index",),
}


def normalise(answer: Any, peer: Peer) -> Any:
    """A tree of dicts, lists and scalars."""
    return _Normaliser(peer).value(answer, "")


class _Normaliser:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._names = {topic_id: name for name, topic_id in peer.topic_ids.items()}
        # The scripted moment is an hour before the run: what is later than half of that is the peer's own
        # clock.
        self._run_began = peer.now + 1_800_000
        self._soon = int(time.time() * 1000) + 60_000

    def value(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (Closed, Silence)):
            return repr(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).hex()
        if isinstance(value, dict):
            return {self._text(str(key)): self.value(item, path) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, path) for item in value]
        return self._struct(value)

    def _text(self, text: str) -> str:
        """Text without the names and times that are a peer's own."""
        return _TIME_RANGE.sub("[<a while ago>, <soon>]", text.replace(self._peer.prefix, "~"))

    def _struct(self, struct_: Any) -> dict[str, Any]:
        name = type(struct_).__name__
        plain = {f: self._field(name, f, getattr(struct_, f)) for f in field_names(struct_)}
        for field in plain:
            if f"{name}.{field}" in _BY_NAME and plain[field]:
                plain[field] = {item["name"]: item for item in plain[field]}
            keys = _SETS.get(f"{name}.{field}")
            if keys and plain[field]:
                plain[field] = sorted(plain[field], key=lambda item: [str(item[k]) for k in keys])
        return plain

    def _field(self, owner: str, field: str, value: Any) -> Any:
        if value is None:
            return None
        if field in ("records",) and owner != "DeletableGroupResult":
            return self._records(memoryview(value))
        if field == "topic_id":
            return self._topic_id(value)
        if field == "producer_id":
            return self._producer_id(value)
        if field in _TIMES:
            return self._time(value)
        if field == "session_id" and value != 0:
            return "<session>"
        if field == "finalized_features_epoch" and value >= 0:
            return "<epoch>"
        if field == "port" and value == self._peer.address[1]:
            return "<port>"
        if field == "cluster_id":
            return "<cluster>"
        if field == "log_dir":
            return "<folder>"
        if field in ("total_bytes", "usable_bytes") and value > 0:
            return "<bytes>"
        return self.value(value, field)

    def _topic_id(self, value: bytes) -> str:
        if value == ZERO_UUID:
            return "<zero>"
        if value in self._names:
            return f"<id of {self._text(self._names[value])}>"
        # Scripts make ids up with a first half of zeros; whatever else is unknown was chosen by the peer.
        return value.hex() if value[:8] == bytes(8) else "<an id>"

    def _producer_id(self, value: int) -> int | str:
        if value in self._peer.producer_ids:
            return f"<producer {self._peer.producer_ids.index(value)}>"
        return value

    def _time(self, value: int) -> int | str:
        return "<now>" if self._run_began < value < self._soon else value

    def _records(self, view: memoryview) -> list[Any]:
        """Each batch header as a dict, its records as bytes, and what stands behind the last whole batch."""
        batches: list[Any] = []
        end = 0
        for position, header in headers(view):
            end = position + header.size
            batches.append(self._batch(view, position, header))
        if end < len(view):
            batches.append({"cut off": self._cut_off(view[end:])})
        return batches

    def _batch(self, view: memoryview, position: int, header: BatchHeader) -> dict[str, Any]:
        plain: dict[str, Any] = {f: self._field("Batch", f, v) for f, v in header._asdict().items()}
        plain["crc"] = "right" if crc_matches(view, position, header) else "wrong"
        plain["body"] = bytes(view[position + HEADER_SIZE : position + header.size]).hex()
        return plain

    def _cut_off(self, rest: memoryview) -> dict[str, Any]:
        if len(rest) < 12:
            return {"bytes": len(rest)}
        base_offset, length = struct.unpack_from(">qi", rest)
        return {"bytes": len(rest), "base_offset": base_offset, "batch_length": length}


def field_names(message: Any) -> list[str]:
    """The declared fields of a message, in the order of the wire."""
    names: list[str] = []
    for cls in reversed(type(message).__mro__):
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return names


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Every place where two normalised answers differ, as (path, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in [*theirs, *(k for k in ours if k not in theirs)]:
            where = f"{path}.{key}" if path else str(key)
            found += differences(ours.get(key, "<absent>"), theirs.get(key, "<absent>"), where)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            difference
            for i, pair in enumerate(zip(ours, theirs, strict=True))
            for difference in differences(*pair, f"{path}[{i}]")
        ]
    return [] if ours == theirs and type(ours) is type(theirs) else [(path, ours, theirs)]
