"""Ids of topics and clusters: sixteen random bytes, written as Kafka writes them.

Kafka's text form is URL-safe base64 without padding, twenty-two characters. It avoids ids whose text starts
with a dash (command lines would take them for options) and keeps the lowest ids for itself.
"""

from __future__ import annotations

import base64
import random

_RESERVED_BELOW = 100
"""Kafka has given out 0 (no id), 1 and 2 so far."""


def random_id(rng: random.Random) -> bytes:
    while True:
        bits = rng.getrandbits(128)
        bits = bits & ~(0xF << 76) | (4 << 76)  # a version 4 UUID, as every Kafka tool expects
        bits = bits & ~(0b11 << 62) | (0b10 << 62)
        raw = bits.to_bytes(16, "big")
        if bits >= _RESERVED_BELOW and not id_text(raw).startswith("-"):
            return raw


def id_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def id_from_text(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"not an id: {text!r}")
    return raw
