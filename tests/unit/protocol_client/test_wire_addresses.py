"""Bootstrap addresses are read as people write them."""

from __future__ import annotations

import pytest

from ottla.protocol_client.wire import parse_bootstrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", [("localhost", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , b ", [("a", 1), ("b", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
        ("PLAINTEXT://h:1", [("h", 1)]),
    ],
)
def test_bootstrap_addresses_are_parsed(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no broker address"),
        (",", "no broker address"),
        (":9092", "has no host"),
        ("h:", None),
        ("h:x", "port is not a number"),
        ("h:0", "port is not a number"),
        ("h:70000", "port is not a number"),
        ("[::1", "is not an address"),
        ("SSL://h:1", "only PLAINTEXT"),
    ],
)
def test_an_invalid_address_is_refused(text: str, reason: str | None) -> None:
    if reason is None:
        assert parse_bootstrap(text) == [("h", 9092)]
        return
    with pytest.raises(ValueError, match=reason):
        parse_bootstrap(text)
