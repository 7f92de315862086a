"""The controller's side of the feed, and the connections to other brokers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from ottla.broker.image_polls import ImagePolls
from ottla.broker.peers import CONTROL, IMAGE, Peers
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import BrokerNode, ClusterImage, Endpoint
from ottla.peer.tcp import TcpConnector
from ottla.protocol.errors import ApiError, ErrorCode

PATIENCE = 30.0


def test_a_poll_ends_with_the_news_with_its_time_or_with_the_broker() -> None:
    async def main() -> None:
        feed = ImageFeed()
        polls = ImagePolls(feed)
        assert await polls.news(0, 0.01) is None
        waiting = asyncio.create_task(polls.news(0, PATIENCE))
        await asyncio.sleep(0)
        feed.reset(replace(ClusterImage(), version=3))
        assert await waiting == feed.current
        ended = asyncio.create_task(polls.news(3, 3600))
        await asyncio.sleep(0)
        polls.close()
        assert await asyncio.wait_for(ended, PATIENCE) is None

    asyncio.run(main())


def test_leaders_are_waited_for_until_all_act_on_the_image() -> None:
    async def main() -> None:
        polls = ImagePolls(ImageFeed())
        polls.applied(1, 5)
        assert await polls.reached(5, [1], 0.0)
        assert not await polls.reached(5, [1, 2], 0.01)
        waiting = asyncio.create_task(polls.reached(6, [1, 2], PATIENCE))
        await asyncio.sleep(0)
        polls.applied(1, 7)
        polls.applied(2, 5)
        await asyncio.sleep(0)
        assert not waiting.done()
        polls.applied(2, 6)
        assert await waiting

    asyncio.run(main())


def test_connections_of_a_broker_are_closed_when_it_registers_anew_or_is_gone() -> None:
    async def main() -> None:
        peers = Peers(1, "INTERNAL", TcpConnector(), random.Random(1))
        with pytest.raises(ApiError) as unknown:
            peers.client(2)
        assert unknown.value.code is ErrorCode.BROKER_NOT_AVAILABLE
        node = BrokerNode(2, "host", 9092, epoch=5, endpoints=(Endpoint("INTERNAL", "inside", 1),))
        await peers.learn(node)
        client = peers.client(2)
        assert client.address == ("inside", 1)
        assert peers.client(2, CONTROL) is client
        assert peers.client(2, IMAGE) is not client
        await peers.follow({2: replace(node, fenced=True)})
        assert peers.client(2) is client
        await peers.follow({2: replace(node, epoch=6)})
        assert peers.client(2) is not client
        await peers.learn(node)  # as the registry had it some time ago
        await peers.follow({})
        with pytest.raises(ApiError):
            peers.client(2)
        await peers.close()

    asyncio.run(main())
