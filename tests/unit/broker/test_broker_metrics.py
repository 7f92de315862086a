"""A broker's figures: what clients did is in a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import ottla.testing
from ottla.testing.in_process import InProcessBroker
from raw_client import FETCH_VERSION, PRODUCE_VERSION, RawClient, fetch_request, produce_request


def snapshot(broker: InProcessBroker) -> dict[str, Any]:
    """The figures, read on the broker's own event loop."""
    assert broker.broker is not None
    metrics = broker.broker.metrics

    async def read() -> dict[str, Any]:
        return dict(metrics.snapshot())

    assert broker._loop is not None
    return asyncio.run_coroutine_threadsafe(read(), broker._loop).result(30)


def test_requests_bytes_and_latencies_are_counted_per_api() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        before = snapshot(broker)
        for _ in range(3):
            client.produce("t", b"x" * 1000)
        after = snapshot(broker)
    assert after["request_seconds.Produce"]["count"] == 3
    assert 0 < after["request_seconds.Produce"]["max"] < 30
    assert 3_000 < after["bytes_in"] - before["bytes_in"] < 6_000
    assert 0 < after["bytes_out"] - before["bytes_out"] < 1_000
    assert after["log_bytes"] > 3_000
    assert after["connections"] == 1
    assert after["partitions"] == 1


def test_requests_without_a_response_are_counted() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.send(produce_request("t", [b"x"], acks=0), PRODUCE_VERSION)
        client.send(produce_request("t", [b"y"]), PRODUCE_VERSION)
        client.receive_frame()
        figures = snapshot(broker)
    assert figures["request_seconds.Produce"]["count"] == 2


def test_the_time_of_a_long_poll_includes_its_wait_in_the_purgatory() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.call(fetch_request("t", 0, max_wait_ms=300), FETCH_VERSION)
        figures = snapshot(broker)
    assert figures["request_seconds.Fetch"]["max"] >= 0.29
    assert figures["purgatory_size"] == 0
    assert figures["under_replicated_partitions"] == figures["under_min_isr_partitions"] == 0


def test_flushes_are_timed() -> None:
    with ottla.testing.broker(topics=["t"], log_flush_interval_messages=1) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.produce("t", b"x")
        flushes: Mapping[str, float] = snapshot(broker)["flush_seconds"]
    assert flushes["count"] >= 1


def test_a_snapshot_of_an_idle_broker_shows_no_stalls() -> None:
    with ottla.testing.broker() as broker:
        figures = snapshot(broker)
    assert figures["stalls_by_requests"] == 0
    assert figures["rebalance_seconds"]["count"] == 0
