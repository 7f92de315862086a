"""How many groups may have configurations of their own.

A group can be configured before it exists, as in Kafka, so nothing bounds their number but this limit: each
configuration stays in the registry and in the image of every broker until it is removed. Groups with
very long names count several times, since the names are kept too. What is configured already may be changed
and removed, whatever the limit is. Pure; the controller asks for each change it is about to write.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.cluster.image import ConfigResource
from ottla.protocol.errors import ApiError, ErrorCode

GROUP_CONFIG = 32
NAME_LENGTH = 250
"""A group counts once for each so many characters of its name that are begun."""


class GroupConfigLimit:
    """What is left of the limit while some changes are decided on."""

    def __init__(self, limit: int, present: Iterable[ConfigResource]) -> None:
        self._limit = limit
        self._left = limit - sum(_weight(name) for kind, name in present if kind == GROUP_CONFIG)

    def take(self, resource: ConfigResource) -> None:
        """Count a resource that gets its first configuration. ApiError if there are too many groups."""
        kind, name = resource
        if kind != GROUP_CONFIG:
            return
        weight = _weight(name)
        if weight > self._left:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{self._limit} groups may have configurations of their own (max.configured.groups). "
                "Remove those of groups that are not used any more, or raise the limit.",
            )
        self._left -= weight


def _weight(name: str) -> int:
    return 1 + (len(name) - 1) // NAME_LENGTH
