"""Where the cluster's registry is: `sqlite:PATH` or `zookeeper://host1:2181,host2:2181/path`.

Brokers of one cluster name the same registry. A SQLite file is for brokers of one machine, ZooKeeper for
brokers on many. The path behind ZooKeeper's addresses keeps clusters apart that share the servers.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SQLITE = "sqlite"
ZOOKEEPER = "zookeeper"
_ZOOKEEPER_PORT = 2181
_FORMS = "expected sqlite:PATH or zookeeper://HOST:PORT,HOST:PORT/PATH"


class RegistryUrl(NamedTuple):
    kind: str
    place: str
    """The path of the file, or ZooKeeper's addresses with the path behind them."""

    def __str__(self) -> str:
        return f"{self.kind}:{'//' if self.kind == ZOOKEEPER else ''}{self.place}"


def parse_registry_url(text: str) -> RegistryUrl:
    """`ValueError` with the reason when the text is not the address of a registry."""
    kind, colon, place = text.strip().partition(":")
    if not colon or kind.lower() not in (SQLITE, ZOOKEEPER):
        raise ValueError(f"{text!r} is no registry ({_FORMS})")
    if kind.lower() == SQLITE:
        if not place or place.startswith("//"):
            raise ValueError(f"{text!r} names no file ({_FORMS})")
        return RegistryUrl(SQLITE, str(Path(place).expanduser().absolute()))
    if not place.startswith("//"):
        raise ValueError(f"{text!r} has no // before the addresses ({_FORMS})")
    hosts, slash, path = place[2:].partition("/")
    addresses = [_address(text, host.strip()) for host in hosts.split(",")]
    return RegistryUrl(ZOOKEEPER, ",".join(addresses) + (slash + path).rstrip("/"))


def _address(text: str, host: str) -> str:
    bare = host if not host.startswith("[") else host.partition("]")[2]
    name, _, port = host.rpartition(":") if ":" in bare else (host, "", str(_ZOOKEEPER_PORT))
    if not name:
        raise ValueError(f"{text!r} names no ZooKeeper server ({_FORMS})")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return f"{name}:{port}"
