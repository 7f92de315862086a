"""The clients of the benchmark, each run in a process of its own: `python -m bench.clients ROLE JSON`.

A role takes its settings as one JSON object, does its work and prints one JSON object. Bulk work is done by
librdkafka through confluent-kafka, with `produce_batch` and `consume` so that Python's cost per record stays
small (about 1.7 million records/s of 100 B against 0.9 million with `produce`); latency by the raw sockets of
bench.wire, because a client with threads and queues of its own would be most of what is measured.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.processes import Meter
from bench.transaction_clients import TRANSACTION_ROLES
from bench.wire import (
    Connection,
    fetch_frame,
    fetched_batches,
    produce_frame,
    produced_offset,
    single_record_batch,
)

_STUCK = 60.0  # seconds without progress after which a client gives up


def produce(
    bootstrap: str, pids: list[int], topic: str, size: int, count: int, config: dict[str, Any]
) -> Any:
    """Send `count` records of `size` bytes to partition 0 as fast as librdkafka takes them."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 3,
            "error_cb": lambda error: failures.append(str(error)),
            **config,
        }
    )
    producer.list_topics(topic, timeout=30)
    group = max(1, min(1000, 1_000_000 // size, count))
    values = [os.urandom(size) for _ in range(8)]
    messages = [{"value": values[i % len(values)]} for i in range(group)]
    if config.get("enable.idempotence"):
        # The producer id is asked for before the clock starts: on a fresh Kafka it takes seconds.
        producer.produce(topic, values[0], partition=0)
        if producer.flush(_STUCK):
            raise RuntimeError(f"no producer id within {_STUCK} s: {failures}")
    meter = Meter(pids)
    left, progress = count, time.monotonic()
    while left:
        part = messages if left >= group else messages[:left]
        taken = producer.produce_batch(topic, part, partition=0)
        left -= taken
        if taken:
            progress = time.monotonic()
            producer.poll(0)
        elif time.monotonic() - progress > _STUCK:
            raise RuntimeError(f"nothing was taken for {_STUCK} s: {failures}")
        else:
            producer.poll(0.005)
    if producer.flush(_STUCK):
        raise RuntimeError(f"not all records were acknowledged: {failures}")
    return meter.stop()


def consume(
    bootstrap: str, pids: list[int], topic: str, size: int, count: int, config: dict[str, Any]
) -> Any:
    """Read `count` records of partition 0 from its start, and check that none is missing."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 3,
            "group.id": "bench",
            "enable.auto.commit": False,
            # Never wait with a full queue: the client's pause would hide the broker.
            "queued.min.messages": 10_000_000,
            "fetch.queue.backoff.ms": 5,
            **config,
        }
    )
    consumer.list_topics(topic, timeout=30)
    group = max(1, min(5000, 1_000_000 // size))
    meter = Meter(pids)
    consumer.assign([TopicPartition(topic, 0, 0)])
    got, progress = 0, time.monotonic()
    last = None
    while got < count:
        messages = consumer.consume(min(group, count - got), 0.5)
        if messages:
            last, progress = messages[-1], time.monotonic()
            got += len(messages)
            if last.error():
                raise RuntimeError(str(last.error()))
        elif time.monotonic() - progress > _STUCK:
            raise RuntimeError(f"only {got} of {count} records came within {_STUCK} s")
    result = meter.stop()
    if last is None or last.offset() != count - 1 or len(last) != size:
        raise RuntimeError(f"{got} records, but the last one is {last and last.offset()}")
    consumer.close()
    return result


def single(port: int, pids: list[int], topic: str, size: int, count: int) -> Any:
    """One record a request, acks=all, one request at a time: the time of each, in nanoseconds."""
    frame = produce_frame(topic, single_record_batch(os.urandom(size), int(time.time() * 1000)))
    connection = Connection(port)
    send, receive, clock = connection.send, connection.receive, time.perf_counter_ns
    times = [0] * count
    first = produced_offset(_call(connection, frame), topic)
    gc.disable()
    meter = Meter(pids)
    for i in range(count):
        began = clock()
        send(frame)
        answer = receive()
        times[i] = clock() - began
    result = meter.stop()
    last = produced_offset(answer, topic)
    if last != first + count:
        raise RuntimeError(f"{count} records were sent, but offsets went from {first} to {last}")
    connection.close()
    return result | {"times": times}


def paced(port: int, pids: list[int], topic: str, size: int, count: int, rate: int) -> Any:
    """Send `rate` records a second, each at its time whether or not the one before was answered.

    Gives the time each offset was sent (CLOCK_MONOTONIC, which `waiting` reads in its process too).
    """
    frame = produce_frame(topic, single_record_batch(os.urandom(size), int(time.time() * 1000)))
    connection = Connection(port)
    first = produced_offset(_call(connection, frame), topic) + 1
    clock, sleep = time.monotonic_ns, time.sleep
    sent = [0] * count
    gc.disable()
    meter = Meter(pids)
    start = clock() + 20_000_000
    step = 1_000_000_000 // rate
    for i in range(count):
        ahead = start + i * step - clock()
        if ahead > 0:
            sleep(ahead / 1e9)
        sent[i] = clock()
        connection.send(frame)
        if i % 16 == 15:  # answers pile up in the socket; taken in groups they cost the pace nothing
            for _ in range(8):
                connection.receive()
    for _ in range(count - 8 * (count // 16)):
        answer = connection.receive()
    result = meter.stop()
    if produced_offset(answer, topic) != first + count - 1:
        raise RuntimeError("the last record has not the expected offset")
    connection.close()
    return result | {"first": first, "sent": sent}


def waiting(port: int, topic: str, start: int, count: int) -> Any:
    """Long-poll from an offset on; the time each offset arrived, in order."""
    connection = Connection(port)
    clock = time.monotonic_ns
    arrived: list[int] = []
    position = start
    gc.disable()
    print("ready", flush=True)
    while len(arrived) < count:
        connection.send(fetch_frame(topic, position))
        answer = connection.receive()
        now = clock()
        for first, last in fetched_batches(answer, topic):
            if first != position:
                raise RuntimeError(f"asked for offset {position}, got {first}")
            arrived.extend([now] * (last - first + 1))
            position = last + 1
    connection.close()
    return {"arrived": arrived}


def _call(connection: Connection, frame: bytes) -> bytes:
    connection.send(frame)
    return connection.receive()


ROLES: dict[str, Callable[..., Any]] = {
    "produce": produce,
    "consume": consume,
    "single": single,
    "paced": paced,
    "waiting": waiting,
    **TRANSACTION_ROLES,
}


if __name__ == "__main__":
    print(json.dumps(ROLES[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
