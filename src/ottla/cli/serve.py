"""`ottla serve`: run a broker in the foreground until it is told to stop.

Everything that can be wrong is found and said before or while the broker starts: bad configuration with all
its reasons, an address in use, a data folder that another broker holds or that takes no writes. Once it runs
it prints one block with what a person needs (or one line of JSON for a program) and logs plain lines to
stderr. SIGTERM, SIGHUP (its terminal was closed) and Ctrl-C stop it gracefully; a second one ends it at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla import __version__
from ottla.cli.failure import FAILED, Failure, usage
from ottla.cli.options import Json, parse_pairs
from ottla.cli.output import print_json, say, seconds_text, write
from ottla.cli.start_failure import OTHER_FOLDER, start_failure

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.config.values import BrokerConfig

DEFAULT_LISTEN = "127.0.0.1:9092"
_COLLECTOR = (2_000, 10, 50)
"""Thresholds of Python's garbage collector. By its own (700, 10, 10) one large request, which makes a hundred
thousand objects that all go by themselves, has it look at everything several times, for 50 ms and more."""


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def serve(
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", envvar="OTTLA_DATA", help="Folder of the data."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", "-l", metavar="HOST:PORT", help="Address to listen on; port 0 picks a free one."
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Address that clients are told to use."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            envvar="OTTLA_REGISTRY",
            help="Registry of the cluster: sqlite:PATH, or zookeeper://HOST:PORT,HOST:PORT/PATH.",
        ),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", metavar="N", min=0, help="Id of this broker in its cluster."),
    ] = None,
    peer_listen: Annotated[
        str | None,
        typer.Option(
            "--peer-listen",
            metavar="HOST:PORT",
            help="Address for the other brokers, which has no authentication: keep clients away from it.",
        ),
    ] = None,
    rack: Annotated[
        str | None, typer.Option("--rack", metavar="NAME", help="Rack or zone of this broker.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any of Kafka's broker settings; repeatable."),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="What to log on stderr.")
    ] = LogLevel.info,
    as_json: Json = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Settings come from --config, then the environment, then --set and the other options. Without any of them
    the broker listens on 127.0.0.1:9092 and keeps its data in ~/.local/share/ottla/data.
    """
    began = time.monotonic()
    overrides = _overrides(data, listen, advertise, set_ or [])
    overrides |= _place_in_cluster(registry, node_id, rack)
    loaded = _load(config, overrides, peer_listen)
    folder = _prepare_folder(Path(loaded.log_dir))
    _log_to_stderr(log_level)
    loaded.warnings.extend(_unreachable_by_peers(loaded))
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    import asyncio

    asyncio.run(_run(loaded, folder, began, as_json=as_json))


async def _run(config: BrokerConfig, folder: Path, began: float, *, as_json: bool) -> None:
    import asyncio
    import gc

    from ottla.broker.broker import Broker
    from ottla.storage.descriptors import FEWEST, TooFewDescriptors, check_limit, raise_limit

    raise_limit()
    try:
        check_limit()
    except TooFewDescriptors as few:
        raise Failure(str(few), f"Raise the limit, for example with ulimit -n {16 * FEWEST}.") from None
    stop = asyncio.Event()

    def asked_to_stop() -> None:
        if stop.is_set():
            say("stopped without waiting")
            os._exit(FAILED)
        stop.set()

    loop = asyncio.get_running_loop()
    stopping = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        stopping.discard(signal.SIGHUP)
    for number in stopping:
        loop.add_signal_handler(number, asked_to_stop)
    broker = Broker(config)
    gc.disable()  # what a start makes is kept, so that looking through it would be a fifth of its time
    try:
        await broker.start()
    except Exception as error:
        known = start_failure(error, config, folder)
        if known is None:
            raise
        raise known from None
    try:
        _announce(broker, folder, began, config.warnings, as_json=as_json)
        # What is loaded stays loaded: the collector need not look at it again, which took 14 ms each time.
        gc.freeze()
        gc.set_threshold(*_COLLECTOR)
        gc.enable()
        await stop.wait()
    finally:
        await broker.stop()


def _announce(broker: Broker, folder: Path, began: float, warnings: list[str], *, as_json: bool) -> None:
    from ottla.config.listeners import Listener

    if as_json:
        print_json(
            {
                "bootstrap": broker.bootstrap_servers,
                "data": str(folder),
                "node_id": broker.node_id,
                "cluster_id": broker.image.cluster_id,
                "listeners": [str(Listener(*endpoint)) for endpoint in broker.endpoints],
                "registry": str(broker.config.registry),
                "pid": os.getpid(),
                "version": __version__,
                "warnings": warnings,
            },
            one_line=True,
        )
        return
    shared = not broker.config.is_default("ottla.registry")
    registry = f"  registry  {broker.config.registry}\n" if shared else ""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    write(
        f"{bold}Ottla {__version__} is ready on {broker.bootstrap_servers}{plain}"
        f"  (in {seconds_text(time.monotonic() - began)})\n"
        f"  data  {folder}\n{registry}"
        f"  stop  Ctrl-C, or kill {os.getpid()}\n"
    )


def _overrides(
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


def _place_in_cluster(registry: str | None, node_id: int | None, rack: str | None) -> dict[str, str]:
    given = {"ottla.registry": registry, "node.id": node_id, "broker.rack": rack}
    return {name: str(value) for name, value in given.items() if value is not None}


def _with_peer_listener(config: BrokerConfig, address: str) -> str:
    """`listeners` with this address for the other brokers."""
    from ottla.config.listeners import parse_listener

    place = parse_listener(_listener("--peer-listen", address))
    *clients, peers = config.listeners.all
    return ",".join(map(str, (*clients, place._replace(name=peers.name))))


def _unreachable_by_peers(config: BrokerConfig) -> list[str]:
    """A registry for many machines, and an address for other brokers that leads to this one only."""
    from ottla.config.registry_url import ZOOKEEPER

    peers = config.listeners.inter_broker
    host, _ = config.advertised(peers, peers.host, peers.port)
    if config.registry.kind != ZOOKEEPER or host not in ("127.0.0.1", "::1", "localhost"):
        return []
    return [
        f"brokers on other machines cannot reach this one at {host}; "
        "--peer-listen HOST:PORT gives it an address for them"
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


def _load(properties: Path | None, overrides: dict[str, str], peer_listen: str | None = None) -> BrokerConfig:
    """The configuration, with our defaults for address and folder where none are given."""
    from ottla.config.values import BrokerConfig, ConfigError

    try:
        loaded = BrokerConfig.load(properties, overrides, os.environ)
        ours = {}
        if loaded.is_default("listeners"):
            ours["listeners"] = f"PLAINTEXT://{DEFAULT_LISTEN}"
        if loaded.is_default("log.dirs") and loaded.is_default("log.dir"):
            ours["log.dirs"] = str(default_folder())
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


def default_folder() -> Path:
    """Where data goes by default: the place for a user's data by the XDG rules."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "ottla" / "data"


def _prepare_folder(folder: Path) -> Path:
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


def _log_to_stderr(level: LogLevel) -> None:
    import logging

    from ottla.log_lines import LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _indent(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())
