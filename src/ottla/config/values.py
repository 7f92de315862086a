"""A broker's configuration with typed values, and that of its topics.

Static values are read at start, from three places, the strongest first: `--set` on the command line, the
environment (`OTTLA_LOG_RETENTION_MS` for log.retention.ms), the properties file. Dynamic ones are set by
clients while the broker runs, for one broker or for all, live in the cluster image, and lie over the static
ones (`with_dynamic`). Only what the command line gives is stronger than dynamic values that were stored
before this start (`over_stored`): so an operator can always get in. A topic takes its own values and, where
it has none, those of its broker (`topic_config`).

`BrokerConfig` never changes: each change of dynamic values makes a new one. All that can be wrong with static
values is found before anything starts, and reported together (`ConfigError`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from ottla.config.consistency import find_problems, resolve
from ottla.config.keys import BadValue, Mode, show
from ottla.config.listeners import WILDCARDS, Listener, Listeners, assign_listeners, parse_listeners
from ottla.config.properties import PropertiesError, decode_properties, parse_properties
from ottla.config.registry_url import SQLITE, RegistryUrl, parse_registry_url
from ottla.config.table import BROKER_KEYS, TOPIC_KEYS, broker_synonyms, nearest
from ottla.config.validation import unknown_key, validate_topic_config

__all__ = [
    "BrokerConfig",
    "ConfigError",
    "Layer",
    "Source",
    "TopicConfig",
    "topic_config",
    "validate_topic_config",
]

logger = logging.getLogger("ottla.config")

REGISTRY_FILE = "registry.sqlite"
"""The registry in the data folder of a broker that names none."""
ENVIRONMENT_PREFIX = "OTTLA_"
_DEFAULTS: dict[str, Any] = {name: key.default for name, key in BROKER_KEYS.items()}


class Source(IntEnum):
    """Where a value comes from, numbered as in a DescribeConfigs response."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


Layer = tuple[str, str | None, Source]
"""The value of one key at one place: (key, value as text, place)."""


class ConfigError(ValueError):
    """The static configuration cannot be used; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BrokerConfig:
    """`config["message.max.bytes"]` is the typed value in force. Every broker key of the table has one."""

    __slots__ = (
        "_broker",
        "_cluster",
        "_overruled",
        "_static_values",
        "_topic_values",
        "_values",
        "command_line",
        "settings",
        "unknown",
        "warnings",
    )

    def __init__(
        self,
        settings: Mapping[str, str],
        static_values: dict[str, Any],
        unknown: Mapping[str, str],
        warnings: list[str],
        command_line: frozenset[str] = frozenset(),
    ) -> None:
        self.command_line = command_line
        """The keys that the command line gave."""
        self.settings = settings
        """What was set at start, as text."""
        self.unknown = unknown
        """What was set at start under unknown names."""
        self.warnings = warnings
        self._static_values = static_values
        self._values = static_values
        self._cluster: Mapping[str, str] = {}
        self._broker: Mapping[str, str] = {}
        self._overruled: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        """Dynamic values from before this start that the command line overrules: of all brokers, of this."""
        self._topic_values: dict[str, Any] | None = None

    @classmethod
    def load(
        cls,
        properties_file: str | Path | None = None,
        overrides: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """Read, check and put together the static configuration; `ConfigError` lists everything wrong."""
        problems: list[str] = []
        warnings: list[str] = []
        given: dict[str, str] = {}
        if properties_file is not None:
            given.update(_from_file(Path(properties_file), problems, warnings))
        given.update(_from_environment(environ or {}, warnings))
        given.update({name: str(value) for name, value in (overrides or {}).items()})

        settings: dict[str, str] = {}
        unknown: dict[str, str] = {}
        values = dict(_DEFAULTS)
        for name, text in given.items():
            key = BROKER_KEYS.get(name)
            if key is None:
                unknown[name] = text
                if not name.startswith("listener.name."):
                    warnings.append(f"{unknown_key(name, BROKER_KEYS, 'broker')} It is ignored.")
                continue
            settings[name] = text
            try:
                values[name] = key.parse(text)
            except BadValue as error:
                problems.append(f"{name}: {error}")
        if not problems:
            problems = find_problems(values, settings)
        if problems:
            raise ConfigError(problems)
        resolve(values, settings)
        for name, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
            if name in settings:
                settings[other] = settings[name]
        return cls(settings, values, unknown, warnings, frozenset(overrides or ()) & frozenset(settings))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return f"<BrokerConfig of node {self['node.id']}, {len(self.settings)} keys set>"

    # -- dynamic values -----------------------------------------------------------------------------------

    def with_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """The static configuration with what clients have set over it: for all brokers, and for this one.

        A value that is not allowed (from a cluster whose brokers differ, say) is passed over with a warning.
        """
        new = BrokerConfig(self.settings, self._static_values, self.unknown, self.warnings, self.command_line)
        new._overruled = self._overruled
        cluster, broker = (
            {name: text for name, text in place.items() if overruled.get(name) != text}
            if overruled
            else place
            for place, overruled in zip((cluster, broker), self._overruled, strict=True)
        )
        if not cluster and not broker:
            return new
        new._cluster, new._broker = cluster, broker
        new._values = dict(self._static_values)
        for place, strongest in ((cluster, Mode.CLUSTER_WIDE), (broker, Mode.PER_BROKER)):
            for name, text in place.items():
                key = BROKER_KEYS.get(name)
                if key is None or key.mode is Mode.READ_ONLY:
                    continue
                if key.mode is Mode.PER_BROKER and strongest is Mode.CLUSTER_WIDE:
                    continue
                try:
                    new._values[name] = key.parse(text)
                except BadValue as error:
                    logger.warning("dynamic value of %s is ignored: %s", name, error)
        resolve(new._values, self.settings)
        return new

    def over_stored(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """This configuration for a start that finds these dynamic values: the command line is stronger.

        A value that a client sets later, to something else, counts again.
        """
        new = BrokerConfig(self.settings, self._static_values, self.unknown, self.warnings, self.command_line)
        own, other = (
            {name: text for name, text in place.items() if name in self.command_line}
            for place in (cluster, broker)
        )
        new._overruled = own, other
        for name in sorted({*own, *other}):
            logger.warning(
                "%s=%s of the command line is used, not %s, which was set at run time before this start",
                name,
                "(hidden)" if BROKER_KEYS[name].sensitive else self.settings[name],
                "(hidden)" if BROKER_KEYS[name].sensitive else other.get(name, own.get(name)),
            )
        return new

    @property
    def set_names(self) -> frozenset[str]:
        """Every key that was set, at start or since."""
        return frozenset().union(self.settings, self._cluster, self._broker)

    @property
    def dynamic_cluster(self) -> Mapping[str, str]:
        """What clients have set for all brokers."""
        return self._cluster

    # -- where values come from ---------------------------------------------------------------------------

    def source(self, name: str) -> Source:
        layers = self.layers(name)
        return layers[0][2] if layers else Source.DEFAULT

    def is_default(self, name: str) -> bool:
        """True when `name` was not set, neither at start nor since."""
        return name not in self.set_names

    def layers(self, name: str) -> list[Layer]:
        """All places that have a value for `name`, the one in force first.

        Keys that say the same in another unit are among them, but only behind the first value of `name`
        itself: so Kafka shows it.
        """
        names = broker_synonyms(name)
        found: list[Layer] = []
        for place, source in (
            (self._broker, Source.BROKER),
            (self._cluster, Source.CLUSTER),
            (self.settings, Source.STATIC),
        ):
            found += [(n, self._shown(n, place[n]), source) for n in names if n in place]
        for n in names:
            default = _DEFAULTS.get(n)
            if default is not None:
                found.append((n, show(default), Source.DEFAULT))
        while found and found[0][0] != name:
            del found[0]
        return found

    def _shown(self, name: str, text: str) -> str | None:
        key = BROKER_KEYS[name]
        if key.sensitive:
            return None
        try:
            return show(key.parse(text))
        except BadValue:
            return text

    # -- what several keys say together -------------------------------------------------------------------

    @property
    def log_dir(self) -> str:
        """The one data folder."""
        folders = self["log.dirs"] or self["log.dir"]
        return str(Path(folders[0]).expanduser())

    @property
    def registry(self) -> RegistryUrl:
        """Where the cluster keeps its state."""
        if self["ottla.registry"] is not None:
            return parse_registry_url(self["ottla.registry"])
        return RegistryUrl(SQLITE, str(Path(self.log_dir) / REGISTRY_FILE))

    @property
    def listeners(self) -> Listeners:
        """What to listen on, for clients and for other brokers."""
        return assign_listeners(
            parse_listeners(self["listeners"]),
            self["controller.listener.names"] or (),
            self["inter.broker.listener.name"],
        )

    def advertised(self, listener: Listener, bound_host: str, bound_port: int) -> tuple[str, int]:
        """Host and port of a listener that others are told, given where the broker really listens."""
        if self["advertised.listeners"]:
            for advertised in parse_listeners(self["advertised.listeners"]):
                if advertised.name == listener.name:
                    return advertised.host, advertised.port or bound_port
        host = listener.host
        if host in WILDCARDS:
            host = _host_name() if bound_host in WILDCARDS else bound_host
        return host, bound_port

    # -- topics -------------------------------------------------------------------------------------------

    @property
    def topic_values(self) -> dict[str, Any]:
        """What a topic has that sets nothing itself. Made once; do not change it."""
        if self._topic_values is None:
            self._topic_values = dict(_topic_defaults(self))
        return self._topic_values


class TopicConfig(Mapping[str, Any]):
    """`config["retention.ms"]` is the typed value in force; every topic key of the table has one."""

    __slots__ = ("_values", "overrides")

    def __init__(self, values: dict[str, Any], overrides: Mapping[str, str]) -> None:
        self._values = values
        self.overrides = overrides

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)


def topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """A topic's configuration: its own values over the broker's.

    Topics without values of their own share one mapping, so that ten thousand of them cost nothing.
    """
    if not overrides:
        return TopicConfig(broker.topic_values, overrides)
    values = dict(broker.topic_values)
    for name, text in overrides.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            continue
        try:
            values[name] = key.parse(text)
        except BadValue as error:
            logger.warning("topic value of %s is ignored: %s", name, error)
    if values["internal.segment.bytes"] is not None:
        values["segment.bytes"] = values["internal.segment.bytes"]
    return TopicConfig(values, overrides)


def _topic_defaults(broker: BrokerConfig) -> Iterator[tuple[str, Any]]:
    for name, key in TOPIC_KEYS.items():
        value = key.default
        for synonym in key.synonyms:
            own = broker[synonym.name]
            if own is not None:
                value = own if synonym.factor == 1 else own * synonym.factor
                break
        if name == "retention.ms":
            value = max(value, -1)  # any negative time means for ever
        yield name, value


def _from_file(path: Path, problems: list[str], warnings: list[str]) -> dict[str, str]:
    try:
        properties = parse_properties(decode_properties(path.read_bytes()))
    except (OSError, PropertiesError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems.append(f"{path}: {reason}")
        return {}
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for name, value, line in properties:
        if name in found and found[name] != value:
            warnings.append(
                f"{path}: {name} is set in line {lines[name]} and again in line {line}, which counts"
            )
        found[name], lines[name] = value, line
    return found


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """Variables that name a key. Others with our prefix belong to tools, unless they look misspelt."""
    ours = {name: value for name, value in environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    found: dict[str, str] = {}
    for variable, value in ours.items():
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        if name in BROKER_KEYS:
            found[name] = value
        elif like := nearest(name, BROKER_KEYS):
            meant = ENVIRONMENT_PREFIX + like.upper().replace(".", "_")
            warnings.append(f"environment variable {variable} names no key; did you mean {meant}?")
    return found


def _host_name() -> str:
    """This machine's name if it can be looked up, since clients will; else the loopback address."""
    import socket

    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name
