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

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.sockets import CannotListen
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
    loaded = _load(config, _overrides(data, listen, advertise, set_ or []))
    folder = _prepare_folder(Path(loaded.log_dir))
    _log_to_stderr(log_level)
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
        known = _start_failure(error, config, folder)
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
    if as_json:
        print_json(
            {
                "bootstrap": broker.bootstrap_servers,
                "data": str(folder),
                "node_id": broker.node_id,
                "cluster_id": broker.image.cluster_id,
                "pid": os.getpid(),
                "version": __version__,
                "warnings": warnings,
            },
            one_line=True,
        )
        return
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    write(
        f"{bold}Ottla {__version__} is ready on {broker.bootstrap_servers}{plain}"
        f"  (in {seconds_text(time.monotonic() - began)})\n"
        f"  data  {folder}\n"
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


def _load(properties: Path | None, overrides: dict[str, str]) -> BrokerConfig:
    """The configuration, with our defaults for address and folder where none are given."""
    from ottla.config.values import BrokerConfig, ConfigError

    try:
        loaded = BrokerConfig.load(properties, overrides, os.environ)
        ours = {}
        if loaded.is_default("listeners"):
            ours["listeners"] = f"PLAINTEXT://{DEFAULT_LISTEN}"
        if loaded.is_default("log.dirs") and loaded.is_default("log.dir"):
            ours["log.dirs"] = str(default_folder())
        return BrokerConfig.load(properties, ours | overrides, os.environ) if ours else loaded
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
        raise Failure(f"the data folder {folder} is a file, or lies in one", _OTHER_FOLDER) from None
    except OSError as error:
        raise Failure(f"cannot make the data folder {folder}: {error.strerror}", _OTHER_FOLDER) from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Failure(f"cannot write to the data folder {folder}", _OTHER_FOLDER)
    return folder


_OTHER_FOLDER = "Give another one with --data DIR."


def _start_failure(error: Exception, config: BrokerConfig, folder: Path) -> Failure | None:
    """What a person should read when the broker does not start."""
    from ottla.broker.broker import REGISTRY_FILE, WrongFolder
    from ottla.broker.sockets import CannotListen
    from ottla.cluster.registration import BrokerIdInUse
    from ottla.cluster.registry import RegistryError
    from ottla.storage.log_directory import DirectoryInUse

    if isinstance(error, DirectoryInUse):
        return Failure(str(error).split(";")[0], "Stop that one, or give another folder with --data DIR.")
    if isinstance(error, WrongFolder):
        return Failure(str(error))
    if isinstance(error, BrokerIdInUse):
        return Failure(str(error), "Give this one another id with --set node.id=N.")
    if isinstance(error, RegistryError):
        return _registry_failure(error, folder / REGISTRY_FILE)
    if isinstance(error, CannotListen):
        return _listen_failure(error)
    if not isinstance(error, OSError):
        return None
    return Failure(f"cannot use the data folder {folder}: {error.strerror or error}", _OTHER_FOLDER)


def _registry_failure(error: Exception, file: Path) -> Failure:
    import sqlite3

    from ottla.cluster.registry import Damaged

    if isinstance(error, Damaged):
        return Failure(
            f"the registry {file}, which knows the topics, is damaged: {_reason(error, file)}",
            "Put back a copy of it, or try `sqlite3 registry.sqlite .recover` on a copy. "
            "Records are in other files; do not delete them.",
        )
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    advice = {
        sqlite3.SQLITE_FULL: "Free some space on the disk.",
        sqlite3.SQLITE_IOERR: "Is the disk full, or failing?",
        sqlite3.SQLITE_READONLY: "May this user write to it?",
        sqlite3.SQLITE_CANTOPEN: "May this user read and write it?",
        sqlite3.SQLITE_PERM: "May this user read and write it?",
        sqlite3.SQLITE_BUSY: "Another process holds it. Which one, says `fuser` or `lsof`.",
    }
    return Failure(f"cannot use the registry {file}: {_reason(error, file)}", advice.get(code, ""))


def _reason(error: Exception, file: Path) -> str:
    return str(error).removeprefix(f"the registry at {file}: ")


def _listen_failure(error: CannotListen) -> Failure:
    import errno
    import ipaddress
    import socket

    host, port = error.host, error.port
    what = f"cannot listen on {f'[{host}]' if ':' in host else host}:{port}"
    if isinstance(error.__cause__, socket.gaierror):
        return Failure(f"{what}: no such host{' or network interface' if '%' in host else ''}")
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"{what}: the port is in use", "Is a broker running already? --listen HOST:0 picks a free port."
        )
    if error.errno == errno.EINVAL and ":" in host and ipaddress.ip_address(host).is_link_local:
        return Failure(
            f"{what}: a link-local address needs its network interface",
            f"Write it behind the address, for example [{host}%eth0]:{port}.",
        )
    return Failure(f"{what}: {(error.strerror or str(error)).lower()}")


def _log_to_stderr(level: LogLevel) -> None:
    import logging

    from ottla.log_lines import LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _indent(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())
