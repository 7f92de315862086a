"""The one rule by which a pattern chooses topics, for the source and for declarations alike.

It is the rule of Spark's Kafka connector: the pattern may match anywhere in the name, so `clicks` takes
`clicks`, `clicks-eu` and `my-clicks`. Anchors (`^clicks$`) ask for the whole name. Spaces around the pattern
do not count. The expression is read by Python's `re`.
"""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression; `re.error` when it is none."""
    return re.compile(pattern.strip())


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription to `pattern` reads the topic."""
    return compiled(pattern).search(topic) is not None
