"""Addresses to listen on and to be found under: `NAME://host:port`, `host:port`, `[::1]:9092`, `:9092`.

A broker has one or more listeners for clients and one for the other brokers of its cluster, which have no
other way in. Clients are told the addresses of the listener that they came in by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PLAINTEXT = "PLAINTEXT"
INTER_BROKER = "INTERNAL"
"""The name of the listener for other brokers, unless `inter.broker.listener.name` names another."""
WILDCARDS = ("", "0.0.0.0", "::")
"""Hosts that stand for every interface: to listen on, but not to be found under."""


class Listener(NamedTuple):
    """One address. `name` is upper case, as in Kafka; an empty `host` means every interface."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listener(text: str) -> Listener:
    """`ValueError` with the reason when the text is no address."""
    name, scheme, address = text.strip().rpartition("://")
    if scheme and not name:
        raise ValueError(f"{text!r} has no name before ://")
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} has no port (expected host:port)")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, as in [::1]:9092")
    if "/" in host or " " in host:
        raise ValueError(f"{text!r} is no address (expected host:port)")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{text!r}: the port must be a number from 0 to 65535")
    return Listener(name.upper() or PLAINTEXT, host, int(port))


def parse_listeners(texts: Sequence[str]) -> list[Listener]:
    """All of them; names must differ, and so must ports unless they are 0 (any free port)."""
    listeners = [parse_listener(text) for text in texts]
    if not listeners:
        raise ValueError("no address is given")
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise ValueError("two listeners have the same name")
    return listeners


class Listeners(NamedTuple):
    """What a broker listens on. The first one for clients is the one that people are told."""

    clients: tuple[Listener, ...]
    inter_broker: Listener

    @property
    def all(self) -> tuple[Listener, ...]:
        return *self.clients, self.inter_broker


def assign_listeners(
    listeners: Sequence[Listener], controllers: Sequence[str], inter_broker: str | None
) -> Listeners:
    """Which listener is for whom. `controllers` names those of a Kafka controller, which are passed over.

    Where none is there for other brokers, one on the loopback address with any free port is: enough for a
    single broker, and for several on one machine. Kafka's sample file has one listener for clients and
    brokers alike; since nothing could tell them apart there, that one is for clients.
    """
    passed_over = {name.upper() for name in controllers}
    served = [listener for listener in listeners if listener.name not in passed_over]
    name = (inter_broker or INTER_BROKER).upper()
    named = [listener for listener in served if listener.name == name]
    if inter_broker and not named:
        raise ValueError(f"{inter_broker}, which inter.broker.listener.name names, is not among them")
    clients = tuple(listener for listener in served if listener.name != name)
    if not clients and name != INTER_BROKER:
        clients, named = tuple(named), []
    if not clients:
        raise ValueError("must name an address for clients")
    return Listeners(clients, named[0] if named else Listener(INTER_BROKER, "127.0.0.1", 0))


def parse_protocols(text: str) -> dict[str, str]:
    """`listener.security.protocol.map`: NAME:PROTOCOL,NAME:PROTOCOL."""
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.rpartition(":")
        if not colon or not name:
            raise ValueError(f"{entry!r} is not NAME:PROTOCOL")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def parse_address_limits(text: str) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: address:limit,address:limit; brackets around IPv6 may stand."""
    limits: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address, colon, limit = entry.rpartition(":")
        if not colon or not address or not (limit.isascii() and limit.isdigit()):
            raise ValueError(f"{entry!r} is not address:limit")
        limits[address.strip().strip("[]")] = int(limit)
    return limits
