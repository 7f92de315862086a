"""Large changes in small portions: how many a request may ask for, and how they are taken one by one.

Kafka refuses requests that change more than 10,000 things, and so do we. What is below is done in portions,
so that other requests are served in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_CHANGES = 10_000
"""Changes that one request may ask for."""
TOO_MANY_CHANGES = "Unable to perform excessively large batch operation."
TOO_MANY_PARTITIONS = "Excessively large number of partitions per request."


def in_portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, at most `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
