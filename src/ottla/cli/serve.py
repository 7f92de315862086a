"""`ottla serve`: run a broker in the foreground until it is told to stop.

Everything that can be wrong is found and said before or while the broker starts: bad configuration with all
its reasons, an address in use, a data folder that another broker holds or that takes no writes. Once it runs
it prints one block with what a person needs (or one line of JSON for a program) and logs plain lines to
stderr. SIGTERM, SIGHUP (its terminal was closed) and Ctrl-C stop it gracefully; a second one ends it at once.

With `--brokers` it runs a whole cluster (`local_cluster`), whose brokers are processes of this command.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla import __version__
from ottla.cli.failure import FAILED, Failure, usage
from ottla.cli.options import Json
from ottla.cli.output import print_json, say, seconds_text, write
from ottla.cli.serve_config import (
    load_config,
    place_in_cluster,
    prepare_folder,
    settings_of_options,
    unreachable_by_peers,
)
from ottla.cli.start_failure import start_failure

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event
    from collections.abc import Callable

    from ottla.broker.broker import Broker
    from ottla.config.values import BrokerConfig

MOST_BROKERS = 50
_ALL_STOP_SECONDS = 1.0
"""In this time all brokers of a cluster notice that their supervisor was killed."""
_COLLECTOR = (2_000, 10, 50)
"""Thresholds of Python's garbage collector. By its own (700, 10, 10) one large request, which makes a hundred
thousand objects that all go by themselves, has it look at everything several times, for 50 ms and more."""


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def serve(
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            metavar="N",
            min=1,
            max=MOST_BROKERS,
            help="Run a cluster of N brokers on this machine, on consecutive ports.",
        ),
    ] = None,
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
    supervised: Annotated[str, typer.Option("--supervised", hidden=True)] = "",
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Settings come from --config, then the environment, then --set and the other options. Without any of them
    the broker listens on 127.0.0.1:9092 and keeps its data in ~/.local/share/ottla/data.
    """
    began = time.monotonic()
    overrides = settings_of_options(data, listen, advertise, set_ or [])
    if brokers is not None:
        _refuse_beside_brokers({"--node-id": node_id, "--peer-listen": peer_listen, "--rack": rack})
        shared = [f"--log-level={log_level}", *(f"--set={pair}" for pair in set_ or [])]
        shared += [f"--config={config.absolute()}"] if config is not None else []
        loaded = load_config(config, overrides | place_in_cluster(registry, None, None), folder="cluster")
        _serve_cluster(brokers, loaded, registry, shared, began, as_json=as_json)
        return
    overrides |= place_in_cluster(registry, node_id, rack)
    loaded = load_config(config, overrides, peer_listen)
    folder = prepare_folder(Path(loaded.log_dir))
    _refuse_folder_of_cluster(folder)
    _log_to_stderr(log_level, supervised)
    if not supervised:  # the supervisor has said it for all of them
        loaded.warnings.extend(unreachable_by_peers(loaded))
        for warning in loaded.warnings:
            say(f"warning: {warning}")
    import asyncio

    asyncio.run(_run(loaded, folder, began, as_json=as_json, supervised=bool(supervised)))


def _serve_cluster(
    count: int,
    config: BrokerConfig,
    registry: str | None,
    shared: list[str],
    began: float,
    *,
    as_json: bool,
) -> None:
    import asyncio

    from ottla.cli.local_cluster import Announcement, Supervisor, check_folder, plan_brokers

    folder = prepare_folder(Path(config.log_dir))
    warnings = [*config.warnings, *unreachable_by_peers(config), *check_folder(folder, count)]
    plans = plan_brokers(count, config, folder, registry, shared)
    for warning in warnings:
        say(f"warning: {warning}")

    async def supervise() -> None:
        await Supervisor(plans).run(Announcement(folder, began, warnings, as_json))

    asyncio.run(supervise())


def _refuse_beside_brokers(options: dict[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise usage(f"{name} is for a single broker; --brokers gives each of its own")


def _refuse_folder_of_cluster(folder: Path) -> None:
    from ottla.cli.local_cluster import REGISTRY_FILE, refuse_half_converted

    refuse_half_converted(folder)
    if (folder / REGISTRY_FILE).exists():
        raise Failure(
            f"the data folder {folder} belongs to a cluster of several brokers",
            "Start it with --brokers N, or give another folder with --data DIR.",
        )


async def _run(config: BrokerConfig, folder: Path, began: float, *, as_json: bool, supervised: bool) -> None:
    import asyncio
    import gc

    from ottla.broker.broker import Broker
    from ottla.storage.descriptors import FEWEST, TooFewDescriptors, check_limit, raise_limit

    raise_limit()
    try:
        check_limit()
    except TooFewDescriptors as few:
        raise Failure(str(few), f"Raise the limit, for example with ulimit -n {16 * FEWEST}.") from None
    started, stop = asyncio.Event(), asyncio.Event()

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
    if supervised:
        _obey_supervisor(loop, broker, started, asked_to_stop)
    gc.disable()  # what a start makes is kept, so that looking through it would be a fifth of its time
    try:
        await broker.start()
    except Exception as error:
        known = start_failure(error, config, folder)
        if known is None:
            raise
        raise known from None
    started.set()
    try:
        _announce(broker, folder, began, config.warnings, as_json=as_json)
        # What is loaded stays loaded: the collector need not look at it again, which took 14 ms each time.
        gc.freeze()
        gc.set_threshold(*_COLLECTOR)
        gc.enable()
        await stop.wait()
    finally:
        await broker.stop()


def _obey_supervisor(
    loop: AbstractEventLoop, broker: Broker, started: Event, stop: Callable[[], None]
) -> None:
    """Standard input is a pipe from the supervisor. When it ends, all brokers stop: the supervisor is gone.

    A line says that all brokers are about to stop. It is answered with a line when this one elects no more.
    """
    import asyncio

    tasks = []

    async def stop_electing() -> None:
        await broker.stop_electing()
        write("\n")

    async def stop_with_all() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ALL_STOP_SECONDS):
                await started.wait()
                await broker.stop_electing()
        # The others find the end of the pipe now, too. One that has not yet would take over from this one.
        await asyncio.sleep(_ALL_STOP_SECONDS)
        stop()

    def read() -> None:
        if os.read(0, 1):
            tasks.append(loop.create_task(stop_electing()))
        else:
            loop.remove_reader(0)
            tasks.append(loop.create_task(stop_with_all()))

    loop.add_reader(0, read)


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
    lines = {"data": str(folder)}
    if shared:
        lines["registry"] = str(broker.config.registry)
    lines["stop"] = f"Ctrl-C, or kill {os.getpid()}"
    width = max(map(len, lines))
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    write(
        f"{bold}Ottla {__version__} is ready on {broker.bootstrap_servers}{plain}"
        f"  (in {seconds_text(time.monotonic() - began)})\n"
        + "".join(f"  {name:{width}}  {text}\n" for name, text in lines.items())
    )


def _log_to_stderr(level: LogLevel, of: str) -> None:
    import logging

    from ottla.log_lines import LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(of))
    logging.basicConfig(level=level.upper(), handlers=[handler])
