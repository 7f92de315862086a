"""Which partitions are fetched from which leader, by the cluster image: a listener of `image_follower`.

There is one fetch loop (`replication/fetch_loop`) for each broker that leads a partition with a replica here.
When the image names another leader, or a new leader epoch, the partition goes to that leader's loop or begins
anew in the one it is in. A partition without a leader is not fetched. A loop without partitions ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from ottla.broker.image_follower import ImageChange
from ottla.broker.peers import Peers
from ottla.cluster.image import NO_LEADER, ClusterImage, PartitionState, TopicImage
from ottla.config.values import BrokerConfig
from ottla.protocol.schema import Request
from ottla.replication.fetch_loop import FetchLoop, Leader
from ottla.replication.fetch_plan import FetchSettings, Key
from ottla.replication.partition import Partition

_FETCHES = ("fetches", "more fetches")
"""What the connections to leaders are used for: an answer may take long, so nothing else goes over them."""
_PLACED_AT_A_TIME = 500
"""Partitions that are given to their loops in one iteration of the event loop."""


class HeldReplicas(Protocol):
    def held(self, topic: str, index: int) -> Partition | None: ...


class PeerLeader:
    """A broker that leads partitions, found under the address that it has now.

    Responses come in the order of their requests, so one that is given up holds up its connection until the
    leader answers it. The next request takes the other of two.
    """

    def __init__(self, peers: Peers, broker_id: int) -> None:
        self._peers = peers
        self._broker_id = broker_id
        self._use, self._other = _FETCHES

    async def call(self, request: Request, *, timeout: float) -> Any:
        try:
            return await self._peers.client(self._broker_id, self._use).call(request, timeout=timeout)
        except asyncio.CancelledError:
            self._use, self._other = self._other, self._use
            raise


class _Place(NamedTuple):
    """Where a partition is fetched, and as what."""

    leader: int
    leader_epoch: int
    partition: Partition


class ReplicaFetching:
    """`leader` gives the connection to a broker, `broker_epoch` the epoch of this broker's registration.

    `admit` is asked before bytes are written, see `FetchLoop`.
    """

    def __init__(
        self,
        node_id: int,
        replicas: HeldReplicas,
        leader: Callable[[int], Leader],
        broker_epoch: Callable[[], int],
        config: Callable[[], BrokerConfig],
        admit: Callable[[Partition, int], None] = lambda partition, size: None,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._leader = leader
        self._broker_epoch = broker_epoch
        self._config = config
        self._admit = admit
        self._places: dict[Key, _Place] = {}
        self._loops: dict[int, FetchLoop] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many partitions are fetched."""
        return len(self._places)

    async def follow(self, change: ImageChange) -> None:
        """Take over who leads what in a new image."""
        for name, topic in change.delta.topics.items():
            old = change.old.topics.get(name)
            if old is not None and (topic is None or topic.id != old.id):
                for index in range(len(old.partitions)):
                    self._forget((old.id, index))
        await self._place_all(_changed(change))

    async def place_missing(self, image: ClusterImage) -> None:
        """Fetch partitions whose logs could not be made before, and have been made now."""
        await self._place_all(
            (topic, index, state)
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if self._node_id in state.replicas and (topic.id, index) not in self._places
        )

    async def close(self) -> None:
        """Fetch nothing any more, whatever images say that are taken over until the broker has left."""
        self._is_closed = True
        await self.stop()

    async def stop(self) -> None:
        """Fetch nothing until an image says so again."""
        self._places.clear()
        loops, self._loops = list(self._loops.values()), {}
        await asyncio.gather(*(loop.stop() for loop in loops))

    async def _place_all(self, partitions: Iterable[tuple[TopicImage, int, PartitionState]]) -> None:
        for count, (topic, index, state) in enumerate(partitions, 1):
            self._place(topic, index, state)
            if not count % _PLACED_AT_A_TIME:
                await asyncio.sleep(0)
        for leader in [leader for leader, loop in self._loops.items() if not len(loop)]:
            await self._loops.pop(leader).stop()

    def _place(self, topic: TopicImage, index: int, state: PartitionState) -> None:
        key = topic.id, index
        partition = self._replicas.held(topic.name, index)
        if (
            self._is_closed
            or partition is None
            or partition.log.failure is not None
            or self._node_id not in state.replicas
            or state.leader in (NO_LEADER, self._node_id)
        ):
            self._forget(key)
            return
        place = _Place(state.leader, state.leader_epoch, partition)
        known = self._places.get(key)
        if known == place:
            return
        if known is not None and known.leader != place.leader:
            self._forget(key)
        self._places[key] = place
        loop = self._loops.get(place.leader)
        if loop is None:
            settings = fetch_settings(self._config())  # none of them changes while a broker runs
            loop = self._loops[place.leader] = FetchLoop(
                place.leader,
                self._leader(place.leader),
                self._node_id,
                replica_epoch=self._broker_epoch,
                settings=lambda: settings,
                admit=self._admit,
            )
            loop.start()
        loop.follow(partition)

    def _forget(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None and (loop := self._loops.get(place.leader)) is not None:
            loop.forget(key)


def fetch_settings(config: BrokerConfig) -> FetchSettings:
    return FetchSettings(
        max_wait_ms=config["replica.fetch.wait.max.ms"],
        min_bytes=config["replica.fetch.min.bytes"],
        max_bytes=config["replica.fetch.max.bytes"],
        response_max_bytes=config["replica.fetch.response.max.bytes"],
        backoff=config["replica.fetch.backoff.ms"] / 1000,
        timeout=max(config["replica.socket.timeout.ms"], config["replica.fetch.wait.max.ms"] + 1000) / 1000,
    )


def _changed(change: ImageChange) -> Iterator[tuple[TopicImage, int, PartitionState]]:
    for topic in change.delta.topics.values():
        if topic is not None:
            for index, state in enumerate(topic.partitions):
                yield topic, index, state
    for name, partitions in change.delta.partitions.items():
        found = change.image.topics.get(name)
        if found is not None:
            for index, state in partitions.items():
                yield found, index, state
