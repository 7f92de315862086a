"""`ottla serve --brokers N`: a cluster on this machine, a process for each broker, under one supervisor.

The supervisor is the process that the person started. It starts the brokers on consecutive ports, waits until
all are ready, says where they are, and starts one again that ended by itself, after a pause that grows while
it keeps ending. It serves no client and keeps no state: the brokers find each other through their registry.

No broker outlives the supervisor. Each has a pipe from it as its standard input and stops when that ends,
also when the supervisor was killed. Brokers are in sessions of their own, so that Ctrl-C reaches the
supervisor alone. It tells all of them first that they all stop, and ends them when none of them elects
leaders any more: otherwise the last one to stop would lead everything at the next start. A second Ctrl-C
kills them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla import __version__
from ottla.backoff import BackOff
from ottla.cli.failure import FAILED, Failure, usage
from ottla.cli.output import print_json, say, seconds_text, write

if TYPE_CHECKING:
    from ottla.config.values import BrokerConfig

REGISTRY_FILE = "cluster.sqlite"
"""Not the name of a single broker's registry: neither is ever taken for the other."""
SINGLE_BROKER_FILE = "meta.properties"
CONVERTING = ".converting"
"""There while the folder of a single broker becomes that of a cluster (`convert_folder`)."""
_STOP_ELECTING_SECONDS = 2.0
_REPLICAS = 3
_IN_SYNC = 2


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """How one broker is started."""

    node_id: int
    data: Path
    host: str
    port: int
    options: tuple[str, ...]

    def arguments(self, port: int) -> list[str]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return [
            "serve",
            "--json",
            f"--supervised=broker {self.node_id}",
            f"--node-id={self.node_id}",
            f"--data={self.data}",
            f"--listen={host}:{port}",
            *self.options,
        ]


def cluster_settings(brokers: int, config: BrokerConfig) -> dict[str, str]:
    """What follows from the number of brokers, where the person has not said otherwise.

    With three brokers a record is acknowledged when two have it, so one may fail without loss or stop.
    """
    replicas = str(min(_REPLICAS, brokers))
    in_sync = str(_IN_SYNC if brokers >= _REPLICAS else 1)
    wanted = {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "min.insync.replicas": in_sync,
    }
    return {name: value for name, value in wanted.items() if config.is_default(name)}


def plan_brokers(
    count: int, config: BrokerConfig, data: Path, registry: str | None, options: Sequence[str]
) -> list[BrokerPlan]:
    """One plan for each broker. `options` are those that all share."""
    from ottla.config.listeners import parse_listeners

    clients = config.listeners.clients
    if len(clients) != 1:
        raise usage(f"--brokers takes one address for clients (got {','.join(map(str, clients))})")
    (listener,) = clients
    advertised = parse_listeners(config["advertised.listeners"] or [str(listener)])[0]
    if max(listener.port, advertised.port) + count - 1 > 65_535:
        raise usage(f"there are no {count} ports from {listener.port} on")
    shared = [f"--registry={registry or f'sqlite:{data / REGISTRY_FILE}'}", *options]
    shared += [f"--set={name}={value}" for name, value in cluster_settings(count, config).items()]
    plans = []
    for index in range(count):
        own = list(shared)
        if config["advertised.listeners"]:
            port = advertised.port + index if advertised.port else 0
            own.append(f"--advertise={str(advertised._replace(port=port)).partition('://')[2]}")
        plans.append(
            BrokerPlan(
                node_id=index + 1,
                data=data / f"broker-{index + 1}",
                host=listener.host,
                port=listener.port + index if listener.port else 0,
                options=tuple(own),
            )
        )
    return plans


def check_folder(folder: Path, brokers: int) -> list[str]:
    """Refuse the folder of a single broker; the warnings that there are."""
    refuse_half_converted(folder)
    if (folder / SINGLE_BROKER_FILE).exists():
        raise Failure(
            f"the data folder {folder} belongs to a single broker",
            f"`ottla cluster convert {folder}` makes it a broker of a cluster. Or give another folder with "
            "--data DIR, or start that broker without --brokers.",
        )
    if (folder / f"broker-{brokers + 1}").exists():
        return [f"the cluster in {folder} has more than {brokers} brokers; the others are not started"]
    return []


def refuse_half_converted(folder: Path) -> None:
    single, shared = (folder / SINGLE_BROKER_FILE).exists(), (folder / REGISTRY_FILE).exists()
    if (single and shared) or (folder / CONVERTING).exists():
        raise Failure(
            f"the data folder {folder} is half converted to that of a cluster",
            f"Finish it with: ottla cluster convert {folder}",
        )


class _DidNotStart(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(_end_of(code))
        self.code = code


@dataclass(slots=True)
class _Broker:
    """One broker, over all its processes."""

    plan: BrokerPlan
    backoff: BackOff = field(default_factory=BackOff)
    ready: dict[str, Any] = field(default_factory=dict)
    """What its process said of itself when it was ready."""
    process: asyncio.subprocess.Process | None = None
    serves: bool = False
    """Its process has said that it is ready."""

    @property
    def name(self) -> str:
        return f"broker {self.plan.node_id}"

    async def start(self) -> None:
        """Returns when it takes clients. On a free port at first, and on the same one from then on."""
        self.serves = False
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ottla",
            *self.plan.arguments(self._port()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise _DidNotStart(await self.process.wait())
        self.ready = json.loads(line)
        self.serves = True
        self.backoff.started(time.monotonic())

    def _port(self) -> int:
        if self.plan.port or not self.ready:
            return self.plan.port
        return int(str(self.ready["bootstrap"]).rpartition(":")[2])

    async def stop_electing(self) -> None:
        """Returns when the broker elects no leaders any more, or does not answer."""
        process = self.process
        if process is None or process.returncode is not None or not self.serves:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_STOP_ELECTING_SECONDS):
                process.stdin.write(b"\n")
                await process.stdin.drain()
                await process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def ended(self) -> int:
        assert self.process is not None
        return await self.process.wait()


class Supervisor:
    def __init__(self, plans: Sequence[BrokerPlan]) -> None:
        self._brokers = [_Broker(plan) for plan in plans]
        self._stop = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None

    async def run(self, announce: Announcement) -> None:
        """Until a signal stops it, or a broker cannot be started at all."""
        loop = asyncio.get_running_loop()
        stopping = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
            stopping.discard(signal.SIGHUP)
        for number in stopping:
            loop.add_signal_handler(number, self._asked_to_stop)
        try:
            await self._start_all()
            if not self._stop.is_set():
                announce([broker.ready for broker in self._brokers])
            await asyncio.gather(*(self._keep(broker) for broker in self._brokers))
        finally:
            await self._end_all()
            running = [broker.ended() for broker in self._brokers if broker.process is not None]
            await asyncio.gather(*running)

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            say("stopped without waiting")
            for broker in self._brokers:
                broker.signal(signal.SIGKILL)
            os._exit(FAILED)
        self._stop.set()
        self._ending = asyncio.ensure_future(self._end_all())

    async def _end_all(self) -> None:
        await asyncio.gather(*(broker.stop_electing() for broker in self._brokers))
        for broker in self._brokers:
            broker.signal(signal.SIGTERM)

    async def _start_all(self) -> None:
        starts = [asyncio.ensure_future(broker.start()) for broker in self._brokers]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        for broker, outcome in zip(self._brokers, outcomes, strict=True):
            if isinstance(outcome, _DidNotStart):
                if self._stop.is_set():
                    continue
                code = outcome.code if outcome.code > 0 else FAILED
                raise Failure(f"{broker.name} did not start: it {outcome}", code=code)
            if isinstance(outcome, BaseException):
                raise outcome

    async def _keep(self, broker: _Broker) -> None:
        """Start the broker again whenever it ends, until all are to stop."""
        while True:
            how = _end_of(await broker.ended())
            if self._stop.is_set():
                return
            pause = broker.backoff.failed(time.monotonic())
            say(f"{broker.name} {how}; it is started again in {seconds_text(pause)}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
            if self._stop.is_set():
                return
            with suppress(_DidNotStart):  # the next turn says how it ended
                await broker.start()
                say(f"{broker.name} is ready again, pid {broker.ready['pid']}")


def _end_of(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is printed when all brokers are ready."""

    data: Path
    began: float
    warnings: Sequence[str]
    as_json: bool

    def __call__(self, brokers: Sequence[Mapping[str, Any]]) -> None:
        bootstrap = ",".join(str(broker["bootstrap"]) for broker in brokers)
        if self.as_json:
            shown = ("node_id", "bootstrap", "pid", "data")
            print_json(
                {
                    "bootstrap": bootstrap,
                    "data": str(self.data),
                    "cluster_id": brokers[0]["cluster_id"],
                    "registry": brokers[0]["registry"],
                    "pid": os.getpid(),
                    "version": __version__,
                    "brokers": [{name: broker[name] for name in shown} for broker in brokers],
                    "warnings": list(self.warnings),
                },
                one_line=True,
            )
            return
        bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        width = max(len(str(broker["bootstrap"])) for broker in brokers)
        lines = [
            f"  broker {each['node_id']}  {each['bootstrap']:{width}}  pid {each['pid']}  {each['data']}\n"
            for each in brokers
        ]
        write(
            f"{bold}Ottla {__version__} is ready on {bootstrap}{plain}"
            f"  (in {seconds_text(time.monotonic() - self.began)})\n"
            f"{''.join(lines)}"
            f"  stop      Ctrl-C, or kill {os.getpid()}\n"
        )
