"""From the options of `ottla serve` to a configuration and a data folder that can be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.failure import Failure, usage
from ottla.cli.options import parse_pairs
from ottla.cli.start_failure import OTHER_FOLDER

if TYPE_CHECKING:
    from ottla.config.values import BrokerConfig

DEFAULT_LISTEN = "127.0.0.1:9092"


def settings_of_options(
    data: Path | None, listen: str | None, advertise: str | None, pairs: list[str]
) -> dict[str, str]:
    """The settings that the command line gives."""
    found = parse_pairs(pairs, "--set")
    if data is not None:
        found["log.dirs"] = str(data.expanduser())
    if listen is not None:
        found["listeners"] = _listener("--listen", listen)
    if advertise is not None:
        found["advertised.listeners"] = _listener("--advertise", advertise)
    return found


def place_in_cluster(registry: str | None, node_id: int | None, rack: str | None) -> dict[str, str]:
    given = {"ottla.registry": registry, "node.id": node_id, "broker.rack": rack}
    return {name: str(value) for name, value in given.items() if value is not None}


def _with_peer_listener(config: BrokerConfig, address: str) -> str:
    """`listeners` with this address for the other brokers."""
    from ottla.config.listeners import parse_listener

    place = parse_listener(_listener("--peer-listen", address))
    *clients, peers = config.listeners.all
    return ",".join(map(str, (*clients, place._replace(name=peers.name))))


def unreachable_by_peers(config: BrokerConfig) -> list[str]:
    """A registry for many machines, and an address for other brokers that leads to this one only."""
    from ottla.config.registry_url import ZOOKEEPER

    peers = config.listeners.inter_broker
    host, _ = config.advertised(peers, peers.host, peers.port)
    if config.registry.kind != ZOOKEEPER or host not in ("127.0.0.1", "::1", "localhost"):
        return []
    return [
        f"brokers on other machines cannot reach this one at {host}; start each with --node-id, and with "
        "--peer-listen HOST:PORT for an address that they can reach"
    ]


def _listener(option: str, address: str) -> str:
    name, _, place = address.rpartition("://")
    if name.upper() not in ("", "PLAINTEXT"):
        raise usage(
            f"{option} {address!r}: {name} is not built yet, only PLAINTEXT is",
            f"HOST:PORT is enough, for example {DEFAULT_LISTEN}.",
        )
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise usage(f"{option} {address!r}: HOST:PORT is wanted, for example {DEFAULT_LISTEN}")
    if ":" in host and not host.startswith("["):
        raise usage(f"{option} {address!r}: an IPv6 address stands in brackets, like [::1]:9092")
    return f"PLAINTEXT://{host}:{port}"


def load_config(
    properties: Path | None,
    overrides: dict[str, str],
    peer_listen: str | None = None,
    *,
    folder: str = "data",
) -> BrokerConfig:
    """The configuration, with our defaults for address and folder where none are given."""
    from ottla.config.values import BrokerConfig, ConfigError

    try:
        loaded = BrokerConfig.load(properties, overrides, os.environ)
        ours = {}
        if loaded.is_default("listeners"):
            ours["listeners"] = f"PLAINTEXT://{DEFAULT_LISTEN}"
        if loaded.is_default("log.dirs") and loaded.is_default("log.dir"):
            ours["log.dirs"] = str(_default_folder(folder))
        if ours:
            loaded = BrokerConfig.load(properties, ours | overrides, os.environ)
        if peer_listen is not None:
            overrides = overrides | {"listeners": _with_peer_listener(loaded, peer_listen)}
            loaded = BrokerConfig.load(properties, ours | overrides, os.environ)
        return loaded
    except ConfigError as error:
        raise usage(f"the configuration is not usable:\n{_indent(str(error))}") from None
    except OSError as error:
        raise usage(f"cannot read {error.filename or properties}: {error.strerror}") from None


def _default_folder(name: str) -> Path:
    """Where data goes by default: the place for a user's data by the XDG rules."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "ottla" / name


def prepare_folder(folder: Path) -> Path:
    """The folder, made if need be and shown to be writable."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Failure(f"the data folder {folder} is a file, or lies in one", OTHER_FOLDER) from None
    except OSError as error:
        raise Failure(f"cannot make the data folder {folder}: {error.strerror}", OTHER_FOLDER) from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Failure(f"cannot write to the data folder {folder}", OTHER_FOLDER)
    return folder


def _indent(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())
