"""Addresses to listen on and to be found under: `NAME://host:port`, `host:port`, `[::1]:9092`, `:9092`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PLAINTEXT = "PLAINTEXT"


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
