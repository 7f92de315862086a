"""Rules over several keys at once, checked at start, and values that follow from others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

from ottla.config.listeners import (
    INTER_BROKER,
    PLAINTEXT,
    WILDCARDS,
    assign_listeners,
    parse_address_limits,
    parse_listeners,
    parse_protocols,
)
from ottla.config.registry_url import parse_registry_url

Values = Mapping[str, Any]
T = TypeVar("T")

# Pairs of which the first must not be larger than the second.
_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)


def find_problems(values: Values, settings: Mapping[str, str]) -> list[str]:
    """What is wrong with values that are each allowed by themselves; one line each."""
    problems: list[str] = []
    for check in (_identity, _registry, _folders, _addresses, _limits, _order):
        problems.extend(check(values, settings))
    return problems


def resolve(values: dict[str, Any], settings: Mapping[str, str]) -> None:
    """Fill in what follows from other keys: the two names of the node id, and memory for a whole request."""
    if "broker.id" in settings and "node.id" not in settings:
        values["node.id"] = values["broker.id"]
    values["broker.id"] = values["node.id"]
    if "queued.max.request.bytes" not in settings:
        values["queued.max.request.bytes"] = max(
            values["queued.max.request.bytes"], values["socket.request.max.bytes"]
        )


def _identity(values: Values, settings: Mapping[str, str]) -> Iterator[str]:
    if "broker.id" in settings:
        if "node.id" in settings and values["node.id"] != values["broker.id"]:
            yield (
                f"broker.id: must be the same as node.id, for which it is another name "
                f"(got {values['broker.id']} and {values['node.id']})"
            )
        elif values["broker.id"] < 0:
            yield f"broker.id: must be at least 0 (got {values['broker.id']})"


def _registry(values: Values, settings: Mapping[str, str]) -> Iterator[str]:
    if values["ottla.registry"] is not None:
        yield from _parsed("ottla.registry", values, parse_registry_url)


def _folders(values: Values, settings: Mapping[str, str]) -> Iterator[str]:
    name = "log.dirs" if values["log.dirs"] is not None else "log.dir"
    folders = values[name]
    if not folders or not all(folders):
        yield f"{name}: must name a folder (got nothing)"
    elif len(folders) > 1:
        yield f"{name}: must name one folder, as all data is kept in one (got {','.join(folders)})"


def _addresses(values: Values, settings: Mapping[str, str]) -> Iterator[str]:
    protocols = yield from _parsed("listener.security.protocol.map", values, parse_protocols)
    listeners = yield from _parsed("listeners", values, parse_listeners)
    if listeners is None or protocols is None:
        return
    controllers = values["controller.listener.names"] or ()
    try:
        served = assign_listeners(listeners, controllers, values["inter.broker.listener.name"])
    except ValueError as error:
        yield f"listeners: {error} (got {','.join(map(str, listeners))})"
        return
    for listener in served.all:
        protocol = protocols.get(listener.name, PLAINTEXT if listener.name == INTER_BROKER else None)
        if protocol is None:
            yield f"listeners: {listener.name} has no protocol in listener.security.protocol.map"
        elif protocol != PLAINTEXT:
            yield f"listeners: {protocol} is not built yet, only {PLAINTEXT} is (got {listener})"
    if values["advertised.listeners"]:
        advertised = yield from _parsed("advertised.listeners", values, parse_listeners)
        names = {listener.name for listener in served.all} | {name.upper() for name in controllers}
        for listener in advertised or ():
            if listener.name not in names:
                yield f"advertised.listeners: {listener.name} is not among listeners (got {listener})"
            elif listener.host in WILDCARDS:
                yield (
                    f"advertised.listeners: must be an address that clients can reach, "
                    f"which {listener.host or 'an empty host'} is not"
                )


def _limits(values: Values, settings: Mapping[str, str]) -> Iterator[str]:
    overrides = yield from _parsed("max.connections.per.ip.overrides", values, parse_address_limits)
    if overrides is not None and not values["max.connections.per.ip"] and not any(overrides.values()):
        yield (
            "max.connections.per.ip: must be at least 1 unless max.connections.per.ip.overrides lets some "
            "address in (got 0)"
        )
    memory, frame = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    if "queued.max.request.bytes" in settings and 0 <= memory < frame:
        yield (
            f"queued.max.request.bytes: must be at least socket.request.max.bytes, which is {frame}, "
            f"so that a request of that size can be read (got {memory})"
        )


def _order(values: Values, settings: Mapping[str, str]) -> Iterator[str]:
    for least, most in _ORDERED:
        if values[least] > values[most]:
            yield f"{least}: must not be larger than {most}, which is {values[most]} (got {values[least]})"


def _parsed(name: str, values: Values, parse: Callable[[Any], T]) -> Generator[str, None, T | None]:
    """Yields the problem, if there is one; the value of `yield from` is what was parsed, else None."""
    try:
        return parse(values[name])
    except ValueError as error:
        yield f"{name}: {error}"
    return None
