"""Single values: how each type is read and shown, and which values a rule lets through."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.config.keys import BadValue, Type, parse, show
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Type.BOOLEAN, "true", True),
        (Type.BOOLEAN, " FALSE ", False),
        (Type.INT, "12", 12),
        (Type.INT, " -12 ", -12),
        (Type.INT, "+7", 7),
        (Type.INT, "2147483647", 2**31 - 1),
        (Type.INT, "-2147483648", -(2**31)),
        (Type.SHORT, "32767", 32767),
        (Type.LONG, "9223372036854775807", 2**63 - 1),
        (Type.DOUBLE, "0.5", 0.5),
        (Type.DOUBLE, ".5", 0.5),
        (Type.DOUBLE, "1e3", 1000.0),
        (Type.DOUBLE, "2d", 2.0),
        (Type.STRING, " x ", "x"),
        (Type.LIST, "", []),
        (Type.LIST, " a , b,c ", ["a", "b", "c"]),
        (Type.LIST, "a,a,b", ["a", "b"]),
        (Type.LIST, "a,,b", ["a", "", "b"]),
        (Type.CLASS, "x.Y", "x.Y"),
        (Type.PASSWORD, " secret ", " secret "),
    ],
)
def test_text_is_read_as_kafka_reads_it(kind: Type, text: str, value: Any) -> None:
    assert parse(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Type.BOOLEAN, "yes"),
        (Type.BOOLEAN, ""),
        (Type.INT, ""),
        (Type.INT, "1.0"),
        (Type.INT, "1_000"),
        (Type.INT, "0x10"),
        (Type.INT, "2147483648"),
        (Type.INT, "\u0663"),
        (Type.INT, "-"),
        (Type.SHORT, "32768"),
        (Type.LONG, "9223372036854775808"),
        (Type.DOUBLE, "nan"),
        (Type.DOUBLE, "inf"),
        (Type.DOUBLE, "1_0"),
        (Type.DOUBLE, ""),
        (Type.DOUBLE, "e"),
    ],
)
def test_text_that_is_no_value_of_the_type_is_refused(kind: Type, text: str) -> None:
    with pytest.raises(BadValue, match=r"must be .* \(got "):
        parse(kind, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (False, "false"),
        (12, "12"),
        ("x", "x"),
        ([], ""),
        (["a", "b"], "a,b"),
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (1234567.5, "1234567.5"),
        (12345678.0, "1.2345678E7"),
        (99999999.99, "9.999999999E7"),
        (-1e10, "-1.0E10"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (4.9e-324, "5.0E-324"),
    ],
)
def test_values_are_shown_as_java_prints_them(value: Any, text: str | None) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("segment.bytes", "12", "must be at least 1048576 (got 12)"),
        ("retention.ms", "-2", "must be at least -1 (got -2)"),
        ("retention.ms", "soon", "must be a whole number of 64 bits (got soon)"),
        ("min.cleanable.dirty.ratio", "1.5", "must be between 0 and 1 (got 1.5)"),
        ("compression.lz4.level", "18", "must be between 1 and 17 (got 18)"),
        ("compression.gzip.level", "0", "must be between 1 and 9, or -1 (got 0)"),
        (
            "compression.type",
            "brotli",
            "must be one of uncompressed, zstd, lz4, snappy, gzip, producer (got brotli)",
        ),
        ("compression.type", "ZSTD", "must be one of"),
        ("cleanup.policy", "delete,shred", "must be a list of compact, delete (got delete,shred)"),
        ("preallocate", "maybe", "must be true or false (got maybe)"),
        ("remote.storage.enable", "true", "must be false, since there is no tiered storage (got true)"),
        ("leader.replication.throttled.replicas", "x", "must be * or a list of partition:broker pairs"),
        ("max.message.bytes", "", "must be a whole number of 32 bits (got nothing)"),
    ],
)
def test_a_value_that_a_topic_key_does_not_allow_is_refused_with_the_reason(
    name: str, text: str, reason: str
) -> None:
    with pytest.raises(BadValue) as caught:
        TOPIC_KEYS[name].parse(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact, delete"),
        ("compression.gzip.level", "-1"),
        ("compression.zstd.level", "-131072"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,2:3"),
        ("leader.replication.throttled.replicas", ""),
        ("remote.storage.enable", "false"),
    ],
)
def test_a_value_at_the_edge_is_allowed(name: str, text: str) -> None:
    TOPIC_KEYS[name].parse(text)


def test_case_insensitive_rules_accept_any_case() -> None:
    assert BROKER_KEYS["group.consumer.migration.policy"].parse("Upgrade") == "Upgrade"
    with pytest.raises(BadValue):
        BROKER_KEYS["group.consumer.migration.policy"].parse("sideways")


@pytest.mark.parametrize("text", ["latest", "earliest", "by_duration:P1D", "by_duration:PT1H30M"])
def test_valid_share_auto_offset_resets_are_accepted(text: str) -> None:
    GROUP_KEYS["share.auto.offset.reset"].parse(text)
    for bad in ("now", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1D"):
        with pytest.raises(BadValue):
            GROUP_KEYS["share.auto.offset.reset"].parse(bad)


def test_a_secret_is_not_in_the_reason() -> None:
    key = BROKER_KEYS["ssl.key.password"]
    assert key.sensitive
    assert key.parse("hunter2") == "hunter2"
