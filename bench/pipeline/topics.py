"""What is read and written: topics of four partitions, filled before anything is measured.

The rows are made in Arrow and written by the project's own encoder, which takes seconds for a million.
Plain values are random bytes of one size; events are JSON of varying length with a key, as topics have them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.writing import write_rows
from ottla.protocol_client.admin import create_topic, delete_topic
from ottla.protocol_client.wire import Wire

PARTITIONS = 4
EVENTS = "id bigint, user string, amount double, at timestamp, note string"
"""The schema of the events, as Spark writes it."""

_CHUNK = 10_000


def make_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    with Wire(bootstrap) as wire:
        create_topic(wire, name, partitions=partitions)


def drop_topic(bootstrap: str, name: str) -> None:
    with Wire(bootstrap) as wire:
        delete_topic(wire, name)


def fill_plain(bootstrap: str, name: str, count: int, size: int) -> None:
    """`count` records without keys, with values of `size` bytes."""
    make_topic(bootstrap, name)
    dice = random.Random(size)
    values = pa.array([dice.randbytes(size) for _ in range(_CHUNK)], pa.binary())
    chunk = pa.RecordBatch.from_arrays([values], names=["value"])
    whole = (chunk.slice(0, min(_CHUNK, count - n)) for n in range(0, count, _CHUNK))
    write_rows(whole, SinkOptions(bootstrap=bootstrap, topic=name))


def fill_events(bootstrap: str, name: str, count: int, seed: int = 1) -> int:
    """`count` JSON events with keys; one in ten repeats an id. Returns the bytes of their values."""
    make_topic(bootstrap, name)
    total = 0

    def chunks() -> Iterator[Any]:
        nonlocal total
        dice = random.Random(seed)
        for start in range(0, count, _CHUNK):
            keys, values = [], []
            for number in range(start, min(start + _CHUNK, count)):
                user = f"user-{dice.randrange(5_000)}"
                event = {
                    "id": number if dice.random() > 0.1 else max(number - 50, 0),
                    "user": user,
                    "amount": round(dice.random() * 100, 2),
                    "at": f"2023-11-14T22:{_minute(number)}:{number // 100 % 60:02}Z",
                    "note": "n" * dice.randrange(40),
                }
                keys.append(user)
                values.append(json.dumps(event))
                total += len(values[-1])
            yield pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"])

    write_rows(chunks(), SinkOptions(bootstrap=bootstrap, topic=name))
    return total


def _minute(number: int) -> str:
    return f"{number // 6_000 % 60:02}"
