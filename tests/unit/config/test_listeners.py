"""Addresses as people write them."""

from __future__ import annotations

import pytest

from ottla.config.listeners import (
    Listener,
    parse_address_limits,
    parse_listener,
    parse_listeners,
    parse_protocols,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://localhost:9092", Listener("PLAINTEXT", "localhost", 9092)),
        ("plaintext://localhost:9092", Listener("PLAINTEXT", "localhost", 9092)),
        ("INSIDE://10.0.0.1:1", Listener("INSIDE", "10.0.0.1", 1)),
        ("localhost:9092", Listener("PLAINTEXT", "localhost", 9092)),
        (":9092", Listener("PLAINTEXT", "", 9092)),
        ("PLAINTEXT://:0", Listener("PLAINTEXT", "", 0)),
        ("[::1]:9092", Listener("PLAINTEXT", "::1", 9092)),
        ("PLAINTEXT://[fe80::1]:9092", Listener("PLAINTEXT", "fe80::1", 9092)),
    ],
)
def test_an_address_is_read_in_each_of_its_forms(text: str, expected: Listener) -> None:
    assert parse_listener(text) == expected
    assert parse_listener(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("localhost", "no port"),
        ("PLAINTEXT://localhost", "no port"),
        ("localhost:", "must be a number from 0 to 65535"),
        ("localhost:65536", "must be a number from 0 to 65535"),
        ("localhost:-1", "must be a number from 0 to 65535"),
        ("localhost:http", "must be a number from 0 to 65535"),
        ("://localhost:1", "no name"),
        ("::1:9092", "brackets"),
        ("http://a/b:80", "no address"),
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_listener(text)


def test_listener_names_must_be_unique() -> None:
    assert len(parse_listeners(["A://:1", "B://:2"])) == 2
    with pytest.raises(ValueError, match="same name"):
        parse_listeners([":1", ":2"])
    with pytest.raises(ValueError, match="no address"):
        parse_listeners([])


def test_protocols_are_mapped_by_listener_name() -> None:
    assert parse_protocols("inside:PLAINTEXT, OUT:ssl") == {"INSIDE": "PLAINTEXT", "OUT": "SSL"}
    with pytest.raises(ValueError, match="NAME:PROTOCOL"):
        parse_protocols("PLAINTEXT")


def test_limits_of_addresses_may_be_for_either_version_of_ip() -> None:
    assert parse_address_limits("127.0.0.1:5, [::1]:6,::2:7") == {"127.0.0.1": 5, "::1": 6, "::2": 7}
    assert parse_address_limits("") == {}
    for bad in ("127.0.0.1", "a:b", ":5", "a:-1"):
        with pytest.raises(ValueError, match="address:limit"):
            parse_address_limits(bad)
