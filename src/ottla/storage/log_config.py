"""What can be configured about one partition's log.

Made from the values of Kafka's topic configuration keys (`segment.bytes`, `retention.ms` ...). Frozen: a
change of configuration is a new `LogConfig` handed to `Log.configure`, in force from the next append on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ottla.protocol.batches import COMPRESSION_MASK

DAY_MS = 24 * 3600 * 1000
FOREVER = 2**63 - 1
MOST_BETWEEN_INDEX_ENTRIES = 64 * 1024
"""Bytes. To find an offset, what lies between two entries is walked batch by batch on the event loop."""

# The name of a codec in `compression.type`, and its number in a batch's attributes.
CODEC_NUMBERS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
assert max(CODEC_NUMBERS.values()) <= COMPRESSION_MASK


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Field names are Kafka's topic keys with underscores; defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    max_message_bytes: int = (1 << 20) + 12
    file_delete_delay_ms: int = 60_000
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    min_cleanable_dirty_ratio: float = 0.5
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_after_max_ms: int = 3_600_000
    # Ours: how large the records of one batch may become when they have to be decompressed.
    max_decompressed_message_bytes: int = 128 << 20
    # Ours: how many records, and as many headers, one batch may hold.
    max_records_per_batch: int = 1_000_000
    # Ours: how many idempotent producers a partition remembers.
    producer_id_max_per_partition: int = 10_000

    # What every append asks, worked out once.
    # `index_interval_bytes`, as far as it is followed.
    index_interval: int = field(init=False, repr=False, compare=False)
    is_compacted: bool = field(init=False, repr=False, compare=False)
    is_deleted: bool = field(init=False, repr=False, compare=False)
    is_log_append_time: bool = field(init=False, repr=False, compare=False)
    # Every batch of a producer has to be opened: for the keys, or to find the oldest record.
    opens_every_batch: bool = field(init=False, repr=False, compare=False)
    # How far ahead the times in a batch's header may lie, so that it need not be opened.
    plausibly_ahead_ms: int = field(init=False, repr=False, compare=False)
    # After how long the active segment is closed: compaction, which must not be late, waits for it.
    longest_segment_ms: int = field(init=False, repr=False, compare=False)
    # The codec every batch is to have, or None when the producer chooses.
    target_codec: int | None = field(init=False, repr=False, compare=False)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LogConfig:
        """From topic configuration values under Kafka's names; other keys are ignored."""
        known: dict[str, Any] = {}
        for each in fields(cls):
            value = values.get(each.name.replace("_", "."))
            if each.init and value is not None:
                known[each.name] = value
        policy = known.get("cleanup_policy")
        if policy is not None:
            names = policy.split(",") if isinstance(policy, str) else policy
            known["cleanup_policy"] = tuple(name.strip() for name in names if name.strip())
        return cls(**known)

    def __post_init__(self) -> None:
        derived = {
            "index_interval": min(self.index_interval_bytes, MOST_BETWEEN_INDEX_ENTRIES),
            "is_compacted": "compact" in self.cleanup_policy,
            "is_deleted": "delete" in self.cleanup_policy,
            "is_log_append_time": self.message_timestamp_type == "LogAppendTime",
            "opens_every_batch": "compact" in self.cleanup_policy
            or (
                self.message_timestamp_before_max_ms < FOREVER and self.message_timestamp_type == "CreateTime"
            ),
            "plausibly_ahead_ms": min(self.message_timestamp_after_max_ms, FOREVER // 2),
            "longest_segment_ms": min(self.segment_ms, self.max_compaction_lag_ms)
            if "compact" in self.cleanup_policy
            else self.segment_ms,
            "target_codec": CODEC_NUMBERS.get(self.compression_type),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def level_for(self, codec: int) -> int | None:
        """The configured compression level of a codec, None where a codec has none."""
        return {
            1: self.compression_gzip_level,
            3: self.compression_lz4_level,
            4: self.compression_zstd_level,
        }.get(codec)
