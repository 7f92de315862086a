"""Memory that clients claim, from outside: who stalls does not stop others, and does not delay a stop."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from attacks.attack import MB, Target
from broker_process import BrokerProcess
from raw_client import RawClient, produce_request


def test_senders_that_stop_short_of_the_end_of_their_frames_do_not_block_others(tmp_path: Path) -> None:
    """Three frames that fill the request memory and never end: small ones pass, large ones wait a little."""
    settings = {
        "socket.request.max.bytes": 10 * MB,
        "queued.max.request.bytes": 24 * MB,
        "message.max.bytes": 8 * MB,
    }
    with BrokerProcess(tmp_path, settings) as broker, ExitStack() as stack:
        assert broker.process is not None
        target = Target(broker.bootstrap_servers, broker.process.pid)
        target.create_topic("t")
        for _ in range(3):
            stalled = stack.enter_context(RawClient(broker.bootstrap_servers))
            stalled.socket.settimeout(0.5)
            try:
                stalled.socket.sendall((10 * MB).to_bytes(4, "big") + b"\0" * (10 * MB - 50))
            except TimeoutError:
                continue  # there is no memory for the third
        producer = stack.enter_context(RawClient(broker.bootstrap_servers, timeout=60))
        began = time.monotonic()
        assert producer.produce("t", b"x" * 100_000).error_code == 0
        assert time.monotonic() - began < 2
        began = time.monotonic()
        assert producer.produce("t", b"x" * 6 * MB).error_code == 0
        assert time.monotonic() - began < 20


def test_the_broker_stops_at_once_though_many_large_frames_wait_for_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, ExitStack() as stack:
        for _ in range(600):
            client = stack.enter_context(RawClient(broker.bootstrap_servers))
            client.socket.sendall((100 * MB).to_bytes(4, "big") + b"\0" * 66_000)
        with RawClient(broker.bootstrap_servers) as last:
            last.send(produce_request("no-such-topic", [b"x"]), 9)
            last.receive_frame()  # all who came before have been read
        began = time.monotonic()
        assert broker.terminate(patience=60) == 0
        assert time.monotonic() - began < 5
