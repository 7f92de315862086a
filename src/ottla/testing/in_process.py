"""A broker on a thread of this process, with an event loop of its own.

The test's thread starts it, asks it to stop and may end it as hard as a crash would; everything else goes
through the socket, as for any client. The port is picked by the kernel and kept over restarts, so that
clients find the broker again. The thread is a daemon and the folder cleans itself up, so a test that
forgets to stop its broker leaves nothing behind when the process ends.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ottla.broker.broker import Broker
from ottla.config.values import BrokerConfig
from ottla.peer.client import Connector
from ottla.protocol.errors import ApiError, error_of
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol_client.wire import Wire
from ottla.storage.files import Disk
from ottla.testing.network import Network
from ottla.testing.ports import ReservedPort

HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds after which starting or stopping has failed; both take milliseconds."""

FIRST_REBALANCE_DELAY_MS = 100
"""How long a new group waits for more members. The 3 s of production would slow down each test."""


class InProcessBroker:
    """Use it in a `with` statement, or call `start` and `stop`."""

    def __init__(
        self,
        *,
        topics: Mapping[str, int],
        data: Path | None,
        disk: Disk | None,
        network: bool,
        settings: Mapping[str, object],
        peer_port: int = 0,
        connector: Connector | None = None,
    ) -> None:
        """`peer_port` is for the other brokers of its cluster, and `connector` leads to them."""
        self._topics = topics
        self._peer_port = peer_port
        self._connector = connector
        self._disk = disk
        self._settings = {name: _text(value) for name, value in settings.items()}
        self._temporary = tempfile.TemporaryDirectory(prefix="ottla-test-") if data is None else None
        self.data = Path(self._temporary.name) if self._temporary is not None else data or Path()
        """The folder with the log."""
        self.broker: Broker | None = None
        """The broker itself while it runs. It belongs to its own thread: look, do not touch."""
        self._port = ReservedPort(HOST)
        self._network = Network(self.port) if network else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<broker {self.bootstrap_servers}>" if self.broker else "<broker, not running>"

    @property
    def host(self) -> str:
        return HOST

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def bootstrap_servers(self) -> str:
        """What a client wants to know: host:port, or where the network begins that leads there."""
        return self.direct_servers if self._network is None else self._network.address

    @property
    def direct_servers(self) -> str:
        """host:port of the broker itself, past the network."""
        return f"{HOST}:{self.port}"

    @property
    def network(self) -> Network:
        """The network to cut, for a broker that was made with `network=True`."""
        if self._network is None:
            raise RuntimeError("this broker has no network to cut: ask for one with broker(network=True)")
        return self._network

    # -- life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        try:
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the broker; it takes clients when this returns."""
        if self.broker is not None:
            raise RuntimeError(f"{self!r} runs already")
        config = BrokerConfig.load(
            overrides={
                "listeners": f"PLAINTEXT://{self.direct_servers},INTERNAL://{HOST}:{self._peer_port}",
                "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
                "log.dirs": str(self.data),
                "group.initial.rebalance.delay.ms": str(FIRST_REBALANCE_DELAY_MS),
                **self._settings,
            }
        )
        broker = Broker(config, disk=self._disk, connector=self._connector)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name="ottla-broker", daemon=True
        )
        self._thread.start()
        try:
            self._call(broker.start())
        except BaseException:
            self._end_loop()
            raise
        self.broker = broker

    def stop(self) -> None:
        """Stop as on SIGTERM: answer what is under way, close the log cleanly. The data stays for a start."""
        self._stop(clean=True)

    def kill(self) -> None:
        """Stop as on SIGKILL: connections and files are dropped as they are. The data stays for a start."""
        self._stop(clean=False)

    def restart(self) -> None:
        """Stop cleanly and start again with the same data, address and settings."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the temporary folder."""
        self.stop()
        if self._network is not None:
            self._network.close()
        self._port.release()
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- what tests want besides --------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic; it takes records when this returns."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=k, value=_text(v)) for k, v in (config or {}).items()],
        )
        with Wire(self.bootstrap_servers) as wire:
            answer = wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=int(PATIENCE * 1000)))
        (result,) = answer.topics
        if result.error_code:
            raise ApiError(error_of(result.error_code), result.error_message)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this block the broker answers no client, as a machine that hangs: for tests of timeouts."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("the broker does not run")
        resume, halted = threading.Event(), threading.Event()

        def halt() -> None:
            halted.set()
            resume.wait()

        loop.call_soon_threadsafe(halt)
        halted.wait(PATIENCE)
        try:
            yield
        finally:
            resume.set()

    # -- the thread ---------------------------------------------------------------------------------------

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _stop(self, *, clean: bool) -> None:
        broker, self.broker = self.broker, None
        if broker is None:
            return
        try:
            self._call(broker.stop() if clean else broker.kill())
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE)


def _text(value: object) -> str:
    """A setting as it would stand in a properties file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
