"""docs/configuration.md, made from the table: `python -m ottla.config.docs > docs/configuration.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from ottla.config.keys import ConfigKey, Mode, Scope, Type, show
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS

INTRODUCTION = """\
# Configuration

<!-- Made from the table in src/ottla/config by `python -m ottla.config.docs`; do not edit. -->

Keys, types, ranges and defaults are those of Apache Kafka 4.3, so that a `server.properties` made for Kafka
works. Ottla differs in these defaults: `node.id` is 1, data lies in a folder of your own, the limits that
Kafka leaves open (`max.connections`, `max.connections.per.ip`, `queued.max.request.bytes`) are finite,
socket buffers grow with need (`socket.receive.buffer.bytes`, `socket.send.buffer.bytes`): with Kafka's 100 KB
producing takes a quarter more CPU; and the listen backlog (`socket.listen.backlog.size`) is as long as the
operating system allows: with Kafka's 50, 3,000 clients that connect one after another need half a minute
instead of a second. Some keys are Ottla's own; their texts say so.

## Setting them

A broker reads its configuration at start from, the strongest first,

1. the command line: `ottla serve --set log.retention.hours=72`,
2. the environment: `OTTLA_LOG_RETENTION_HOURS=72` (the key in capitals, `_` for each dot, behind `OTTLA_`),
3. a file in Java's properties format: `ottla serve --config server.properties`.

An unknown key is ignored with a warning that names the nearest one. A value that is not allowed
stops the start, and all such values are reported together, each with its reason.

While the broker runs, clients change settings with AlterConfigs and IncrementalAlterConfigs
(`ottla topic alter`, `kafka-configs.sh`, the admin calls of any Kafka client). A change is in force when the
answer arrives, on the broker that gave it. For brokers the column *changes* says what is possible: `-` is
only at start, *broker* is for one broker, *cluster* is for one broker or for all of them. The stronger value
counts: that of the one broker, then that of all brokers, then what was read at start. With one exception:
what the command line gives at start wins over values that were set at run time before, until
another value is set. So a broker whose stored limits admit no client is reached again with
`ottla serve --set max.connections.per.ip=100`. Topic keys can always change; a topic that has no value takes
the one of the broker key named beside it.

A key marked *not yet* belongs to a part that is not built; it is read, checked and shown.
"""

_MODES = {Mode.READ_ONLY: "-", Mode.PER_BROKER: "broker", Mode.CLUSTER_WIDE: "cluster"}


def configuration_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield "## Topics"
    yield ""
    yield from _sections(key for key in TOPIC_KEYS.values() if not key.internal)
    yield "## Brokers"
    yield ""
    own = [key for key in BROKER_KEYS.values() if not _is_foreign(key) and not key.internal]
    yield from _sections(own)
    yield "## Groups"
    yield ""
    yield "Kept and shown. The groups that would use them are not built yet."
    yield ""
    yield from _sections(GROUP_KEYS.values())
    yield "## Known to Kafka, without effect here"
    yield ""
    yield "These are read, checked and shown like all others, and do nothing."
    yield ""
    for section, keys in groupby(filter(_is_foreign, BROKER_KEYS.values()), lambda key: key.section):
        names = ", ".join(f"`{key.name}`" for key in keys if not key.internal)
        yield f"**{section}.** {names}"
        yield ""


def _is_foreign(key: ConfigKey) -> bool:
    return not key.used and key.doc.startswith("Without effect. ")


def _sections(keys: Iterable[ConfigKey]) -> Iterator[str]:
    for section, rows in groupby(keys, lambda key: key.section):
        yield f"### {section}"
        yield ""
        members = list(rows)
        brokers = members[0].scope is Scope.BROKER
        last = "changes" if brokers else "broker key"
        yield f"| key | type | default | allowed | {last} | |"
        yield "|---|---|---|---|---|---|"
        for key in members:
            cells = [f"`{key.name}`", key.type.name.lower(), _default(key), _allowed(key)]
            cells += [_MODES[key.mode] if brokers else _synonyms(key), _text(key)]
            yield "| " + " | ".join(cells) + " |"
        yield ""


def _default(key: ConfigKey) -> str:
    text = show(key.default)
    if text is None:
        return "none"
    if key.type in (Type.INT, Type.LONG) and text in _ROUND:
        return _ROUND[text]
    return f"`{text}`" if text else "empty"


_ROUND: Mapping[str, str] = {str(2**63 - 1): "2^63-1", str(2**31 - 1): "2^31-1"}


def _allowed(key: ConfigKey) -> str:
    return key.rule.text.replace("|", "\\|") if key.rule else ""


def _synonyms(key: ConfigKey) -> str:
    return ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)


def _text(key: ConfigKey) -> str:
    not_yet = not key.used and key.scope is not Scope.GROUP and "ithout effect" not in key.doc
    return key.doc + (" *Not yet.*" if not_yet else "")


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
