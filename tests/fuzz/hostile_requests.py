"""Requests that are well formed and hostile inside, of every API and version, made from the declarations.

A message gets values that mean something to a broker, so that it is not refused at the door: names of topics
and groups that exist, partitions that exist, boundary numbers, regular expressions, configuration keys; and
now and then what costs most: one entry repeated a hundred thousand times, a name of 32 KB, a batch with a
good CRC and odd contents, a few kilobytes that decompress to a hundred megabytes.

The topic of the probe is never named, and no setting of the broker itself is changed: both would make the
probe fail with good reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import cramjam

from attacks.forged import batch, record
from ottla.config.table import GROUP_KEYS, TOPIC_KEYS
from ottla.protocol.apis import APIS, Api
from ottla.protocol.frames import request_frame
from ottla.protocol.schema import ZERO_UUID, Field, Struct

TOPICS = ("fuzz-a", "fuzz-b", "fuzz-compacted")
GROUPS = ("group-a", "group-b", "group-c")
_ALTERING = ("AlterConfigs", "IncrementalAlterConfigs")
_NEVER_ALTERED = (4, 8)  # the broker and its loggers
_HUGE = (1_000, 5_000, 20_000, 100_000)
_HUGE_BYTES = 16 << 20
_HOSTILE = ("", "\n\x1b[2J", "x" * 32_000, "\0", "é" * 16_000, "../../etc", "a" * 249, "a" * 250)
_COMPRESSORS = {
    1: lambda data: bytes(cramjam.gzip.compress(data, level=1)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data, level=1)),
}
_NUMBERS = {
    "acks": (-1, 0, 1, 1, 2),
    "max_wait_ms": (0, 0, 10, 100),
    "timeout_ms": (0, 100, 30_000, -1),
    "session_timeout_ms": (6_000, 10_000, 45_000, 0),
    "rebalance_timeout_ms": (1, 6_000, 60_000),
    "num_partitions": (-1, 1, 3, 50, 10_000),
    "replication_factor": (-1, 1, 3),
    "partition": (0, 0, 0, 1, 2, -1, 1 << 30),
    "partition_index": (0, 0, 0, 1, 2, -1, 1 << 30),
    "index": (0, 0, 0, 1, 2, -1),
    "member_epoch": (-2, -1, 0, 0, 1),
    "generation_id": (-1, 0, 1, 2),
    "config_operation": (0, 0, 1, 2, 3),
}


def api_of(frame: bytes) -> str:
    """The API and version of a frame, for people."""
    key, version = int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big")
    return f"{APIS[key].name} v{version}" if key in APIS else f"API {key}"


class HostileRequests:
    def __init__(self, rng: Random, topic_ids: Sequence[bytes]) -> None:
        self._rng = rng
        self._topic_ids = topic_ids
        self._api: Api = APIS[0]
        self._small = False

    def frame(self) -> bytes:
        """The bytes of one request, size included."""
        rng = self._rng
        self._api = APIS[0] if rng.random() < 0.15 else rng.choice(list(APIS.values()))
        self._small = False
        version = rng.randint(self._api.min_version, self._api.max_version)
        message = self._message(self._api.request, version)
        client_id = rng.choice(["fuzz", None, *_HOSTILE]) if rng.random() < 0.05 else "fuzz"
        return b"".join(map(bytes, request_frame(message, version, rng.getrandbits(31), client_id)))

    def _message(self, cls: type[Any], version: int) -> Any:
        return cls(
            **{
                field.name: self._value(field, version)
                for field in cls._fields
                if version in field.versions and not (field.tag is not None and self._rng.random() < 0.5)
            }
        )

    def _value(self, field: Field, version: int) -> Any:
        rng = self._rng
        if version in field.nullable and rng.random() < 0.1:
            return None
        match field.kind:
            case "boolean":
                return rng.random() < 0.5
            case "int8" | "int16" | "int32" | "int64":
                return self._integer(field)
            case "uuid":
                return rng.choice([*self._topic_ids, *self._topic_ids, ZERO_UUID, rng.randbytes(16)])
            case "string":
                return self._string(field.name)
            case "bytes":
                large = not self._small and rng.random() < 0.05
                return rng.randbytes(rng.choice([0, 2, 20, 200_000 if large else 60]))
            case "uint16" | "uint32":
                return rng.getrandbits(int(field.kind[4:]))
            case "float64":
                return rng.choice([0.0, 0.5, 1.0, -1.0, float("nan"), float("inf")])
            case "records":
                return self._records()
            case "struct":
                return self._message(self._struct(field), version)
            case "array":
                return self._array(field, version)
        raise AssertionError(f"no hostile values of kind {field.kind}")

    def _array(self, field: Field, version: int) -> list[Any]:
        rng = self._rng
        huge = not self._small and rng.random() < 0.04
        if huge:
            self._small = True  # what repeats is short
        count = rng.choice([1, 1, 2, 50]) if huge else rng.choice([0, 1, 1, 1, 2, 3])
        of = field.of
        if isinstance(of, Field):
            element = Field(of.kind, of.default, "0+", of=of.of)
            element.name = field.name.removesuffix("s")
            elements = [self._value(element, version) for _ in range(count)]
        else:
            elements = [self._message(self._struct(field), version) for _ in range(count)]
        if not huge:
            return elements
        space = _HUGE_BYTES * count // (1 + _weight(elements))
        return elements * max(min(rng.choice(_HUGE), space) // count, 1)

    @staticmethod
    def _struct(field: Field) -> type[Any]:
        assert isinstance(field.of, type)
        return field.of

    def _integer(self, field: Field) -> int:
        rng, bits = self._rng, int(field.kind[3:]) - 1
        if field.name == "resource_type":
            kinds = [2, 2, 32, 4, 8, 0, 16, 127]
            return rng.choice(
                [k for k in kinds if self._api.name not in _ALTERING or k not in _NEVER_ALTERED]
            )
        if rng.random() < 0.8:
            if field.name in _NUMBERS:
                return rng.choice(_NUMBERS[field.name])
            return rng.choice([0, 0, 1, 1, 2, -1, 3])
        return rng.choice(
            [(1 << bits) - 1, -(1 << bits), -2, -3, -4, -5, 100, rng.randint(0, (1 << bits) - 1)]
        )

    def _string(self, name: str) -> str:
        rng = self._rng
        if not self._small and rng.random() < 0.05:
            return rng.choice(_HOSTILE)
        if name == "subscribed_topic_regex":
            return self._regex()
        if "group" in name or name in ("key", "coordinator_key"):
            return rng.choice([*GROUPS, f"group-{rng.randrange(10_000)}"])
        if name in ("configuration_key",) or (name == "name" and self._api.name in _ALTERING):
            return rng.choice([*TOPIC_KEYS, *GROUP_KEYS, "no.such.key"])
        if name == "value":
            return rng.choice(["1", "1000000", "-1", "compact", "delete", "true", "x", "0.5", "zstd"])
        if name in ("member_id", "instance_id", "group_instance_id"):
            return rng.choice(["", "", f"member-{rng.randrange(5)}"])
        if name in ("protocol_type", "protocol_name"):
            return rng.choice(["consumer", "range"])
        if name == "host":
            return "127.0.0.1"
        if name == "resource_name":
            return rng.choice([*TOPICS, *GROUPS, "1"])
        return rng.choice([*TOPICS, *TOPICS, f"fuzz-{rng.randrange(300)}"])

    def _regex(self) -> str:
        rng = self._rng
        letters = "ab.*+?()[]{}|\\^$0-9,"
        return rng.choice(
            [
                ".*",
                "fuzz-.*",
                "(a+)+$",
                "(" * rng.choice([10, 5_000]),
                "(a?){100}a{100}",
                "((a{1,100}){1,100}){1,100}",
                "|".join("ab" for _ in range(rng.choice([10, 5_000]))),
                "[" + "a-z" * rng.choice([1, 2_000]) + "]*",
                "".join(rng.choice(letters) for _ in range(rng.choice([3, 20, 2_000]))),
            ]
        )

    # -- records ------------------------------------------------------------------------------------------

    def _records(self) -> bytes:
        rng = self._rng
        codec = rng.choice([0, 0, *_COMPRESSORS])
        kind = rng.random()
        if kind < 0.4:
            count = rng.choice([1, 2, 20])
            body = b"".join(self._record(n) for n in range(count))
            body = _compressed(codec, body)
        elif kind < 0.55 and not self._small:
            count = rng.choice([1_000, 100_000, 1_000_000])
            codec = codec or 4
            body = _many(codec, count)
        elif kind < 0.65 and not self._small:
            count = rng.choice([1, 1_000_000])
            codec = codec or 4
            body = _bomb(codec)
        else:
            count, body = rng.choice([1, 1_000]), rng.randbytes(rng.choice([0, 5, 60, 3_000]))
        fields: dict[str, int] = {"attributes": codec}
        if rng.random() < 0.4:
            for name, limit in rng.sample(_HEADER_FIELDS, rng.choice([1, 2, 4])):
                fields[name] = rng.choice([-1, 0, 1, 5, limit, -limit - 1, rng.randint(0, limit)])
            if "attributes" in fields and rng.random() < 0.8:
                fields["attributes"] = fields["attributes"] & ~7 | codec
        records = bytes(batch(body, count=count, **fields))
        return records * 2 if rng.random() < 0.05 else records

    def _record(self, number: int) -> bytes:
        rng = self._rng
        return record(
            rng.choice([number, number, number, -1, 1_000_000, 0]),
            rng.choice([0, 0, 1, -1, 1 << 40, -(1 << 62)]),
            rng.choice([b"k", None, b"", b"key-%d" % rng.randrange(10)]),
            rng.choice([b"v", None, b"v" * 1000]),
            rng.choice([0, 0, 0, 3, 10_000]),
        )


_HEADER_FIELDS = [
    ("base_offset", (1 << 63) - 1),
    ("leader_epoch", (1 << 31) - 1),
    ("attributes", (1 << 15) - 1),
    ("last_offset_delta", (1 << 31) - 1),
    ("base_timestamp", (1 << 63) - 1),
    ("max_timestamp", (1 << 63) - 1),
    ("producer_id", (1 << 63) - 1),
    ("producer_epoch", (1 << 15) - 1),
    ("base_sequence", (1 << 31) - 1),
    ("record_count", (1 << 31) - 1),
]


def _weight(value: Any) -> int:
    """About how many bytes a value takes on the wire."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return sum(map(_weight, value))
    if isinstance(value, Struct):
        return sum(_weight(getattr(value, field.name)) for field in value._fields)
    return 4


def _compressed(codec: int, body: bytes) -> bytes:
    return _COMPRESSORS[codec](body) if codec else body


@cache
def _many(codec: int, count: int) -> bytes:
    """So many records with the same offset delta, which is quick to make and long to read."""
    return _compressed(codec, record(0, 0, None, None) * count)


@cache
def _bomb(codec: int) -> bytes:
    """A hundred megabytes of zeros."""
    return _compressed(codec, bytes(100 << 20))
