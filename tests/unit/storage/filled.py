"""A log with records of known values, to be opened again."""

from typing import Any

import pytest

from ottla.protocol.errors import ApiError
from ottla.storage.log import Log
from ottla.testing.faulty_disk import FaultyDisk
from unit.storage.logs import Store, from_producer, offsets, read_all

FIRST = "00000000000000000000"


def filled(disk: FaultyDisk | None = None, batches: int = 30, **config: Any) -> Store:
    """A partition with an idempotent producer's batches of two records in several segments."""
    defaults: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}
    store = Store(disk, **defaults | config)
    for number in range(batches):
        store.log.append(from_producer(number * 2, 2, value=b"%04d" % number), number // 10)
    return store


def check(log: Log, batches: int = 30) -> None:
    """All batches are there, found by every way, and the producer goes on where it was."""
    assert log.failure is None
    assert (log.log_start_offset, log.end_offset) == (0, batches * 2)
    assert [record.value for record in read_all(log)] == [b"%04d" % (n // 2) for n in range(batches * 2)]
    for offset in range(0, batches * 2, 7):
        assert offsets(log, start=offset) == list(range(offset, batches * 2))
    assert log.leader_epochs.entries == [(epoch, epoch * 20) for epoch in range((batches + 9) // 10)]
    for number in range(batches - 5, batches):
        info = log.append(from_producer(number * 2, 2), 9)
        assert (info.first_offset, info.duplicate) == (number * 2, True)
    with pytest.raises(ApiError):
        log.append(from_producer(batches * 2 + 1), 9)
