"""The other brokers, and the connections to them.

A connection answers one request after the other, so a request that waits at the other end holds back those
behind it. Therefore each kind of use has a connection of its own to a broker: following the image, forwarded
requests, and what has to be quick. Connections are made on first use. When the image says that a broker is
gone, or has registered anew, or moved, its connections are closed: they may lead to an earlier run.

Addresses come from the image. A broker that starts has none yet and finds the controller in the registry;
so `learn` takes a node from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from ottla.cluster.image import BrokerNode
from ottla.peer.client import Address, Connector, PeerClient
from ottla.protocol.errors import ApiError, ErrorCode

IMAGE, FORWARDS, CONTROL = "image", "forwards", "control"
"""What connections to the controller are used for."""


class Peers:
    def __init__(self, node_id: int, listener: str, connector: Connector, rng: Random) -> None:
        """`listener` is the name of the one for other brokers."""
        self._node_id = node_id
        self._listener = listener
        self._connector = connector
        self._rng = rng
        self._nodes: dict[int, BrokerNode] = {}
        self._clients: dict[tuple[int, str], PeerClient] = {}

    def client(self, broker_id: int, use: str = CONTROL) -> PeerClient:
        """The connection to a broker for one use. ApiError if there is no such broker."""
        client = self._clients.get((broker_id, use))
        if client is None:
            node = self._nodes.get(broker_id)
            if node is None:
                raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"There is no broker {broker_id}.")
            client = self._clients[broker_id, use] = PeerClient(
                self._address(node),
                client_id=f"broker-{self._node_id}",
                sockets=self._connector,
                rng=self._rng,
            )
        return client

    async def learn(self, node: BrokerNode) -> None:
        """Take over a broker as the registry has it."""
        known = self._nodes.get(node.id)
        if known is None or known.epoch < node.epoch:
            await self._replace(node.id, node)

    async def follow(self, brokers: Mapping[int, BrokerNode]) -> None:
        """Take over the brokers of a new image."""
        for broker_id in [known for known in self._nodes if known not in brokers]:
            await self._replace(broker_id, None)
        for node in brokers.values():
            await self.learn(node)

    async def close(self) -> None:
        for broker_id in list(self._nodes):
            await self._replace(broker_id, None)

    async def _replace(self, broker_id: int, node: BrokerNode | None) -> None:
        if node is None:
            del self._nodes[broker_id]
        else:
            self._nodes[broker_id] = node
        for key in [each for each in self._clients if each[0] == broker_id]:
            await self._clients.pop(key).close()

    def _address(self, node: BrokerNode) -> Address:
        endpoint = node.endpoint(self._listener)
        return (endpoint.host, endpoint.port) if endpoint is not None else (node.host, node.port)
