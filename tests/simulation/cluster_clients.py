"""A cluster as clients see it: one place to send requests to, which finds the broker for each of them.

`ClusterClient` has the `call` of a `PeerClient`, so the clients of `simulation.clients` work with either. It
behaves as Kafka's clients do: it asks any broker who leads a partition or coordinates a group, remembers the
answer, and asks again when a broker says that it is not the one, or says nothing. It does not believe a
broker that names a leader of an earlier leader epoch than another broker did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ottla.peer.client import PeerClient, PeerUnreachable, UnsupportedByPeer
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.testing.simulation.world import SimulatedBroker, World
from simulation.history import Partition

_LOOKUP_SECONDS = 2.0
_METADATA_VERSION = 12
_GROUP_REQUESTS = (
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)


class TransactionalId(NamedTuple):
    name: str


Key = Partition | TransactionalId | str | None
"""What a request is for: a partition, a transactional id, a group, or none of them."""


class ClusterClient:
    def __init__(self, world: World, host: str, brokers: Mapping[int, SimulatedBroker]) -> None:
        self._clients: dict[int, PeerClient] = {
            node_id: world.client(host, broker) for node_id, broker in brokers.items()
        }
        self._rng = world.rng(f"choices of {host}")
        self._places: dict[Key, int] = {}
        self._epochs: dict[tuple[bytes, int], int] = {}  # of topic ids and partitions
        self._least_epochs: dict[tuple[str, int], int] = {}

    async def call(self, request: Any, *, timeout: float, version: int | None = None) -> Any:
        key = _key_of(request)
        place = self._places.get(key)
        if place is None:
            place = await self._find(key)
        try:
            response = await self._clients[place].call(request, timeout=timeout, version=version)
        except PeerUnreachable:
            self._places.pop(key, None)
            raise
        if any(_errors(response)):
            self._places.pop(key, None)
        return response

    def has_seen(self, partition: tuple[str, int], leader_epoch: int) -> None:
        """Records of this epoch were read, maybe by others: a broker that knows an older one is not asked."""
        if leader_epoch > self._least_epochs.get(partition, -1):
            self._least_epochs[partition] = leader_epoch
            self._places.pop(partition, None)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _find(self, key: Key) -> int:
        """Ask a broker for the place; PeerUnreachable when that does not know either."""
        asked = self._rng.choice(list(self._clients))
        client = self._clients[asked]
        if key is None:
            return asked
        try:
            if isinstance(key, str | TransactionalId):
                of_transaction = isinstance(key, TransactionalId)
                name = key.name if isinstance(key, TransactionalId) else key
                lookup = FindCoordinatorRequest(key=name, key_type=int(of_transaction))
                found = await client.call(lookup, timeout=_LOOKUP_SECONDS, version=2)
                place, error = found.node_id, found.error_code
            else:
                request = MetadataRequest(
                    topics=[MetadataRequestTopic(name=key[0])], allow_auto_topic_creation=False
                )
                answer = await client.call(request, timeout=_LOOKUP_SECONDS, version=_METADATA_VERSION)
                topic = answer.topics[0]
                found = {each.partition_index: each for each in topic.partitions}.get(key[1])
                place, error = (found.leader_id, found.error_code) if found else (-1, 0)
                if found is not None:
                    newest = self._epochs.setdefault((topic.topic_id, key[1]), found.leader_epoch)
                    if found.leader_epoch < max(newest, self._least_epochs.get(key, -1)):
                        place = -1
                    self._epochs[topic.topic_id, key[1]] = max(found.leader_epoch, newest)
        except UnsupportedByPeer as error:
            raise PeerUnreachable(client.address, str(error), maybe_done=False) from None
        if error or place not in self._clients:
            raise PeerUnreachable(client.address, f"it does not know a place for {key}", maybe_done=False)
        self._places[key] = int(place)
        return int(place)


def _key_of(request: Any) -> Key:
    if isinstance(request, ProduceRequest):
        data = request.topic_data[0]
        return data.name, data.partition_data[0].index
    if isinstance(request, FetchRequest):
        return request.topics[0].topic, request.topics[0].partitions[0].partition
    if isinstance(request, ListOffsetsRequest):
        return request.topics[0].name, request.topics[0].partitions[0].partition_index
    if isinstance(request, _GROUP_REQUESTS):
        return request.group_id
    if isinstance(request, AddPartitionsToTxnRequest):
        return TransactionalId(request.v3_and_below_transactional_id)
    if isinstance(request, EndTxnRequest | AddOffsetsToTxnRequest):
        return TransactionalId(request.transactional_id)
    if isinstance(request, InitProducerIdRequest) and request.transactional_id is not None:
        return TransactionalId(request.transactional_id)
    return None


def _errors(response: Any) -> Iterator[int]:
    """The error codes of a response for one thing: its own, and those of its topics and partitions."""
    yield getattr(response, "error_code", 0)
    for topics in ("responses", "topics"):
        for topic in getattr(response, topics, ()):
            for partitions in ("partition_responses", "partitions"):
                for each in getattr(topic, partitions, ()):
                    yield getattr(each, "error_code", 0)
    for topic in getattr(response, "results_by_topic_v3_and_below", ()):
        for each in topic.results_by_partition:
            yield each.partition_error_code
