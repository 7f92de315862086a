"""Pipelined requests of one connection do not block the loop."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from ottla.broker.broker_metrics import BrokerMetrics
from ottla.broker.connection import ITERATION_SECONDS, Connection
from ottla.broker.dispatch import PRODUCE, Dispatcher, RequestContext
from ottla.broker.request_scheduler import RequestScheduler
from ottla.broker.watchdog import Watchdog
from ottla.protocol.frames import request_frame
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from unit.broker.connections import Host, until

_REQUESTS = 30


@pytest.mark.parametrize(
    ("seconds", "iterations"), [(0.0, 1), (ITERATION_SECONDS * 0.75, 15), (ITERATION_SECONDS * 2, 30)]
)
def test_pipelined_requests_yield_the_loop_when_their_time_is_used_up(
    seconds: float, iterations: int
) -> None:
    """The request that exceeds the time is the last of its iteration; the next one waits."""
    iteration, time = 0, 0.0
    handled_in: list[int] = []

    def slow(broker: Any, request: ProduceRequest, context: RequestContext) -> ProduceResponse:
        nonlocal time
        handled_in.append(iteration)
        time += seconds
        return ProduceResponse()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal iteration
            iteration += 1
            counting[0] = loop.call_soon(count)

        watchdog = Watchdog(loop, lambda: time)
        scheduler = RequestScheduler(loop, lambda: time, watchdog)
        dispatcher = Dispatcher(
            cast(Any, None), {PRODUCE: slow}, {}, scheduler, watchdog, BrokerMetrics(), cast(Any, None)
        )
        host = Host(lambda _: None, scratch=65_536)
        host.now = lambda: time  # type: ignore[method-assign]
        host.dispatch = dispatcher  # type: ignore[method-assign]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection(host, ours, "127.0.0.1", "127.0.0.1:1")
        counting = [loop.call_soon(count)]
        frame = b"".join(request_frame(ProduceRequest(acks=1), 9, 1, "client"))
        theirs.sendall(frame * _REQUESTS)
        await until(lambda: len(handled_in) == _REQUESTS)
        counting[0].cancel()
        connection.close()
        theirs.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert len(set(handled_in)) == iterations
