"""The answer of DescribeConfigs: each key with its value, where that comes from, and what else could set it.

A topic's value comes from the topic, else from its broker; a broker's from what clients have set for it, for
all brokers, from its static configuration, or is the default. All of these are a key's layers, the one in
force first. Secrets are listed without their value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ottla.config.keys import BadValue, ConfigKey, Mode, Type, show
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from ottla.config.values import BrokerConfig, Layer, Source


class Entry:
    """One key as it is listed. `layers` are all places with a value, the strongest first."""

    __slots__ = ("doc", "layers", "name", "read_only", "sensitive", "source", "type", "value")

    def __init__(
        self,
        name: str,
        value: str | None,
        layers: list[Layer],
        *,
        kind: Type,
        doc: str,
        read_only: bool = False,
        sensitive: bool = False,
    ) -> None:
        self.name = name
        self.value = value
        self.layers = layers
        self.source = layers[0][2] if layers else Source.DEFAULT
        self.type = kind
        self.doc = doc
        self.read_only = read_only
        self.sensitive = sensitive


Names = Collection[str] | None
"""The keys asked for; None or nothing means all."""


def describe_topic(broker: BrokerConfig, overrides: Mapping[str, str], names: Names = None) -> list[Entry]:
    entries = []
    for key in _wanted(TOPIC_KEYS, names, overrides):
        layers = broker.layers(key.synonyms[0].name) if key.synonyms and not key.internal else []
        value = show(broker.topic_values[key.name])
        if key.name in overrides:
            value = _shown(key, overrides[key.name])
            layers = [(key.name, value, Source.TOPIC), *layers]
        entries.append(Entry(key.name, value, layers, kind=key.type, doc=key.doc))
    return entries


def describe_group(broker: BrokerConfig, overrides: Mapping[str, str], names: Names = None) -> list[Entry]:
    entries = []
    for key in _wanted(GROUP_KEYS, names, overrides):
        if key.synonyms:
            synonym = key.synonyms[0].name
            value, layers = show(broker[synonym]), broker.layers(synonym)
        else:
            value = show(key.default)
            layers = [(key.name, value, Source.DEFAULT)]
        if key.name in overrides:
            value = _shown(key, overrides[key.name])
            layers = [(key.name, value, Source.GROUP), *layers]
        entries.append(Entry(key.name, value, layers, kind=key.type, doc=key.doc))
    return entries


def describe_broker(broker: BrokerConfig, names: Names = None) -> list[Entry]:
    """One broker: every key of the table, and what its static configuration has besides."""
    entries = [_broker_entry(broker, key) for key in _wanted(BROKER_KEYS, names, broker.set_names)]
    for name in broker.unknown:
        if not names or name in names:
            # It is unknown whether the value of such a key is a secret.
            layers: list[Layer] = [(name, None, Source.STATIC)]
            entries.append(
                Entry(name, None, layers, kind=Type.UNKNOWN, doc="", read_only=True, sensitive=True)
            )
    return entries


def describe_cluster(broker: BrokerConfig, names: Names = None) -> list[Entry]:
    """All brokers: only what clients have set for all of them."""
    entries = []
    for key in _wanted(BROKER_KEYS, names, broker.dynamic_cluster):
        if key.name in broker.dynamic_cluster:
            layers = [layer for layer in broker.layers(key.name) if layer[2] is Source.CLUSTER]
            entry = _broker_entry(broker, key)
            entry.layers, entry.source, entry.value = layers, Source.CLUSTER, layers[0][1]
            entries.append(entry)
    return entries


def _broker_entry(broker: BrokerConfig, key: ConfigKey) -> Entry:
    return Entry(
        key.name,
        None if key.sensitive else show(broker[key.name]),
        broker.layers(key.name),
        kind=key.type,
        doc=key.doc,
        read_only=key.mode is Mode.READ_ONLY,
        sensitive=key.sensitive,
    )


def _wanted(keys: Mapping[str, ConfigKey], names: Names, present: Collection[str]) -> Iterator[ConfigKey]:
    for name, key in keys.items():
        if names and name not in names:
            continue
        if key.internal and name not in present:
            continue
        yield key


def _shown(key: ConfigKey, text: str) -> str | None:
    try:
        return show(key.parse(text))
    except BadValue:
        return text
