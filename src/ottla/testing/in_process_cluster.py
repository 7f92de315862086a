"""Several brokers in this process that form one cluster, each on a thread with an event loop of its own.

They are the brokers of `ottla serve --brokers N`: they share a registry in a file, follow one controller and
replicate over their own listener. A test can stop, kill and pause any of them, and with `network=True` cut
one off. For that a relay stands before each broker's address for clients, and one between every two brokers
in each direction; all of them are ordinary sockets of this machine.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.cluster.image import ClusterImage
from ottla.peer.tcp import TcpConnector
from ottla.testing.in_process import HOST, PATIENCE, InProcessBroker
from ottla.testing.network import Network
from ottla.testing.ports import ReservedPort

_LOOK_AGAIN_SECONDS = 0.005


class _LinkConnector(TcpConnector):
    """A broker's way to the others, through the relays that lead from it to them."""

    def __init__(self, relays: Mapping[int, Network]) -> None:
        """`relays` by the port that another broker listens on."""
        self._relays = relays

    async def connect(self, address: tuple[str, int]) -> socket.socket:
        relay = self._relays.get(address[1])
        if relay is not None:
            host, _, port = relay.address.rpartition(":")
            address = host, int(port)
        return await super().connect(address)


class InProcessCluster:
    """Use it in a `with` statement, or call `start` and `close`."""

    def __init__(
        self,
        count: int,
        *,
        topics: Mapping[str, int],
        data: Path | None,
        network: bool,
        settings: Mapping[str, object],
    ) -> None:
        if count < 1:
            raise ValueError(f"a cluster has at least one broker (got {count})")
        self._topics = topics
        self._temporary = tempfile.TemporaryDirectory(prefix="ottla-test-") if data is None else None
        self.data = Path(self._temporary.name) if self._temporary is not None else data or Path()
        """The folder with the registry and a folder for each broker."""
        ids = range(1, count + 1)
        for node in ids:
            (self.data / f"broker-{node}").mkdir(parents=True, exist_ok=True)
        self._peer_ports = {node: ReservedPort(HOST) for node in ids}
        self._links = (
            {(a, b): Network(self._peer_ports[b].number) for a in ids for b in ids if a != b}
            if network
            else {}
        )
        replicas = min(3, count)
        shared = {
            "ottla.registry": f"sqlite:{self.data / 'cluster.sqlite'}",
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": 2 if count >= 3 else 1,
            "min.insync.replicas": 2 if count >= 3 else 1,
            **settings,
        }
        self.brokers: dict[int, InProcessBroker] = {
            node: InProcessBroker(
                topics={},
                data=self.data / f"broker-{node}",
                disk=None,
                network=network,
                settings={**shared, "node.id": node},
                peer_port=self._peer_ports[node].number,
                connector=self._connector(node) if network else None,
            )
            for node in ids
        }
        """The brokers by their ids, which begin with 1."""

    def _connector(self, node: int) -> _LinkConnector:
        return _LinkConnector(
            {self._peer_ports[b].number: relay for (a, b), relay in self._links.items() if a == node}
        )

    def __getitem__(self, node: int) -> InProcessBroker:
        return self.brokers[node]

    def __iter__(self) -> Iterator[InProcessBroker]:
        return iter(self.brokers.values())

    def __repr__(self) -> str:
        return f"<cluster {self.bootstrap_servers}>"

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, running or not, with commas."""
        return ",".join(broker.bootstrap_servers for broker in self)

    # -- life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
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
        """Start every broker that does not run; all take clients and know each other on return."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(InProcessBroker.start, [each for each in self if each.broker is None]))
        self._wait(lambda image: len(_in_service(image)) == len(self._running), "brokers to know each other")

    def close(self) -> None:
        """Stop all brokers, and remove the temporary folder."""
        self.mend()
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(InProcessBroker.close, self))
        for relay in self._links.values():
            relay.close()
        for port in self._peer_ports.values():
            port.release()
        if self._temporary is not None:
            self._temporary.cleanup()

    def stop(self, node: int) -> None:
        """Stop one as on SIGTERM: its leaderships go to others first."""
        self.brokers[node].stop()

    def kill(self, node: int) -> None:
        """Stop one as on SIGKILL: connections and files are dropped as they are."""
        self.brokers[node].kill()

    def restart(self, node: int) -> None:
        """Start a broker again that was stopped or killed; one that runs is stopped first."""
        self.brokers[node].stop()
        self.brokers[node].start()

    def paused(self, node: int) -> AbstractContextManager[None]:
        """Within this block the broker does nothing, as a machine that hangs."""
        return self.brokers[node].paused()

    # -- the network --------------------------------------------------------------------------------------

    def cut(self, node: int, other: int | None = None) -> None:
        """Nothing passes between the two; without `other` nothing passes to or from `node`, clients included.

        Neither side is told. The registry is a file and stays reachable for all.
        """
        if not self._links:
            raise RuntimeError("this cluster has no network to cut: ask for one with cluster(network=True)")
        for pair, relay in self._links.items():
            if pair in ((node, other), (other, node)) or (other is None and node in pair):
                relay.cut()
        if other is None:
            self.brokers[node].network.cut()

    def mend(self) -> None:
        """Join all that was cut."""
        if self._links:
            for relay in (*self._links.values(), *(broker.network for broker in self)):
                relay.mend()

    # -- what tests want besides --------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic with the default number of replicas; all are in sync on return."""
        self._anyone.create_topic(name, partitions, config)
        self.wait_until_in_sync(name)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads a partition now; -1 if there is none."""
        state = _image_of(self._anyone).partition(topic, partition)
        if state is None:
            raise LookupError(f"there is no partition {topic}-{partition}")
        return state.leader

    def controller(self) -> int:
        """The id of the broker that is the controller now."""
        return _image_of(self._anyone).controller_id

    def wait_until_in_sync(self, *topics: str) -> None:
        """Return when all replicas of these topics (of all topics where none is named) are in sync."""

        def in_sync(image: ClusterImage) -> bool:
            found = [image.topics.get(name) for name in topics or image.topics]
            return all(
                topic is not None
                and all(
                    state.leader >= 0 and set(state.isr) == set(state.replicas) for state in topic.partitions
                )
                for topic in found
            )

        self._wait(in_sync, "all replicas to be in sync")

    def wait_for_leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> int:
        """Return the leader of a partition when all running brokers agree on one that runs."""

        def led(image: ClusterImage) -> bool:
            state = image.partition(topic, partition)
            return state is not None and state.leader not in (-1, other_than) and state.leader in running

        running = {node for node, broker in self.brokers.items() if broker.broker is not None}
        self._wait(led, f"a leader of {topic}-{partition}")
        return self.leader(topic, partition)

    @property
    def _running(self) -> list[InProcessBroker]:
        return [broker for broker in self if broker.broker is not None]

    @property
    def _anyone(self) -> InProcessBroker:
        running = self._running
        if not running:
            raise RuntimeError("no broker of the cluster runs")
        return running[0]

    def _wait(self, true_of: Callable[[ClusterImage], bool], what: str) -> None:
        """Until it is true of the image of every running broker."""
        deadline = time.monotonic() + PATIENCE
        while not all(true_of(_image_of(broker)) for broker in self._running):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
            time.sleep(_LOOK_AGAIN_SECONDS)


def _image_of(broker: InProcessBroker) -> ClusterImage:
    """An image never changes, so it may be read from here."""
    running = broker.broker
    return running.image if running is not None else ClusterImage()


def _in_service(image: ClusterImage) -> list[int]:
    return [node.id for node in image.brokers.values() if not node.fenced]
