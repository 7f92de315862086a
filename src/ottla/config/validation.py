"""What may be set at run time: the checks behind CreateTopics, AlterConfigs and IncrementalAlterConfigs.

Each function takes the whole configuration that a resource would have afterwards, as text, and raises
`ApiError` with a reason a person can act on. As in Kafka, a bad value is INVALID_CONFIG for topics and groups
and INVALID_REQUEST for brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ottla.config.keys import BadValue, ConfigKey, Mode
from ottla.config.listeners import parse_address_limits
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, nearest
from ottla.protocol.errors import ApiError, ErrorCode

# Kafka takes these at run time only for one listener (listener.name.<name>.<key>), and TLS is not built yet.
_PER_LISTENER = frozenset(
    name for name in BROKER_KEYS if name.startswith(("ssl.keystore.", "ssl.truststore."))
)
PER_LISTENER_KEYS = _PER_LISTENER | {"ssl.key.password"}


class Values(Protocol):
    """Whatever has typed values under the names of broker keys."""

    def __getitem__(self, name: str) -> Any: ...


def validate_topic_config(overrides: Mapping[str, str], broker: Values | None = None) -> None:
    """Raise `ApiError(INVALID_CONFIG)` unless a topic may have these keys and values.

    With `broker` given, keys that the topic leaves open count with the broker's values where two must agree.
    """
    values = _parsed(overrides, TOPIC_KEYS, "topic", ErrorCode.INVALID_CONFIG)

    def effective(name: str) -> Any:
        key = TOPIC_KEYS[name]
        if name in values:
            return values[name]
        return key.default if broker is None else broker[key.synonyms[0].name]

    least, most = effective("min.compaction.lag.ms"), effective("max.compaction.lag.ms")
    if least > most:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({least}) must not be larger than max.compaction.lag.ms ({most})",
        )


def validate_broker_config(overrides: Mapping[str, str], *, cluster_wide: bool) -> None:
    """Raise `ApiError(INVALID_REQUEST)` unless these can change at run time, for one broker or for all."""
    refused = sorted(n for n in overrides if n in BROKER_KEYS and BROKER_KEYS[n].mode is Mode.READ_ONLY)
    if refused:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"cannot change while the broker runs: {', '.join(refused)}"
        )
    refused = sorted(PER_LISTENER_KEYS.intersection(overrides))
    if refused:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"can only change for one listener: {', '.join(refused)}")
    if cluster_wide:
        refused = sorted(n for n in overrides if n in BROKER_KEYS and BROKER_KEYS[n].mode is Mode.PER_BROKER)
        if refused:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"can only change for one broker, not for all: {', '.join(refused)}",
            )
    values = _parsed(overrides, BROKER_KEYS, "broker", ErrorCode.INVALID_REQUEST)
    try:
        parse_address_limits(values.get("max.connections.per.ip.overrides", ""))
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"max.connections.per.ip.overrides: {error}") from None


def check_lets_in(config: Values, address: str) -> None:
    """Raise `ApiError(INVALID_REQUEST)` when a broker with this configuration admits no client from
    `address`.

    The client that changes the limits must be able to change them back.
    """
    overrides = parse_address_limits(config["max.connections.per.ip.overrides"])
    if not overrides.get(address, config["max.connections.per.ip"]):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"this would refuse every connection from {address}, from where the change comes "
            "(max.connections.per.ip and max.connections.per.ip.overrides)",
        )


def validate_group_config(overrides: Mapping[str, str], broker: Values) -> None:
    """Raise `ApiError(INVALID_CONFIG)` unless a group may have these, within the bounds the broker sets."""
    values = _parsed(overrides, GROUP_KEYS, "group", ErrorCode.INVALID_CONFIG)
    for name, value in values.items():
        kind, _, rest = name.partition(".")
        for bound, broken in (("min", int.__lt__), ("max", int.__gt__)):
            limit = f"group.{kind}.{bound}.{rest}"
            if limit in BROKER_KEYS and broken(value, broker[limit]):
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"{name}: must be at {'least' if bound == 'min' else 'most'} {limit}, "
                    f"which is {broker[limit]} (got {value})",
                )


def _parsed(
    overrides: Mapping[str, str], keys: Mapping[str, ConfigKey], what: str, code: ErrorCode
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        key = keys.get(name)
        if key is None:
            raise ApiError(code, unknown_key(name, keys, what))
        try:
            values[name] = key.parse(text)
        except BadValue as error:
            raise ApiError(code, f"{name}: {error}") from None
    return values


def unknown_key(name: str, keys: Mapping[str, ConfigKey], what: str) -> str:
    """ "unknown topic key x; did you mean y?"."""
    like = nearest(name, keys)
    return f"unknown {what} key {name}" + (f"; did you mean {like}?" if like else ".")
