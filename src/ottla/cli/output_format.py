"""The choices of `ottla consume`, apart from the code that acts on them, so that --help stays fast."""

from __future__ import annotations

from enum import StrEnum


class OutputFormat(StrEnum):
    text = "text"
    json = "json"
    value = "value"
    key_value = "key-value"
    hex = "hex"


class Isolation(StrEnum):
    committed = "committed"
    uncommitted = "uncommitted"
