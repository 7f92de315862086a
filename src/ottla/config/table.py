"""The one table of configuration, from which the broker, its documentation and DescribeConfigs are made.

`BROKER_KEYS`, `TOPIC_KEYS` and `GROUP_KEYS` map names to `ConfigKey`s. The rows are in four files, by what
they configure; `docs` turns them into docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.config import broker_keys, foreign_keys, group_keys, topic_keys
from ottla.config.keys import ConfigKey, Importance, Mode, Scope, Type
from ottla.config.rows import rows

__all__ = [
    "BROKER_KEYS",
    "GROUP_KEYS",
    "TOPIC_KEYS",
    "ConfigKey",
    "Importance",
    "Mode",
    "Scope",
    "Type",
    "broker_synonyms",
    "nearest",
]


BROKER_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for table, used in ((broker_keys.TABLE, True), (foreign_keys.TABLE, False))
    for key in rows(table, Scope.BROKER, Mode.READ_ONLY, used=used)
}
TOPIC_KEYS: Mapping[str, ConfigKey] = {
    key.name: key for key in rows(topic_keys.TABLE, Scope.TOPIC, Mode.CLUSTER_WIDE)
}
GROUP_KEYS: Mapping[str, ConfigKey] = {
    key.name: key for key in rows(group_keys.TABLE, Scope.GROUP, Mode.CLUSTER_WIDE, used=False)
}

# Keys of which the first that is set counts, though each may be described on its own.
_FAMILIES = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
_FAMILY = {name: family for family in _FAMILIES for name in family} | {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The broker keys that say the same thing as `name`, itself among them, the stronger first."""
    return _FAMILY.get(name, (name,))


def nearest(name: str, names: Mapping[str, object]) -> str | None:
    """The known name most like a misspelt one, if there is any like it."""
    from difflib import get_close_matches  # only needed when something is wrong

    found = get_close_matches(name, names, n=1, cutoff=0.75)
    return found[0] if found else None
