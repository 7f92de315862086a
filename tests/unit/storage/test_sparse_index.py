"""Topics with a very large index.interval.bytes: no search for an offset may walk over many batches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ottla.storage.file_names import INDEX_SUFFIX
from ottla.storage.inspect import inspect_index
from ottla.storage.log import Log
from ottla.storage.offset_index import OffsetIndex
from ottla.storage.results import FileSlice, NotInMemory
from ottla.storage.segment import Segment
from unit.storage.logs import Store, batch, offsets

HUGE = 2**31 - 1
BATCHES = 9000
INDEX = "00000000000000000000.index"


def filled(batches: int = BATCHES) -> Store:
    store = Store(index_interval_bytes=HUGE)
    one = bytes(batch(value=b"", key=None))
    for _ in range(batches):
        store.log.append(memoryview(bytearray(one)), 0)
    return store


def longest_gap(store: Store) -> int:
    """Bytes between two neighbours among the start of the log, the entries of its index and its end."""
    index = OffsetIndex.decode(store.files()[INDEX], store.log.size)
    places = [0, *index.positions, store.log.size]
    return max(after - before for before, after in pairwise(places))


@pytest.mark.parametrize("way", ["append", "recovery", "rebuild"])
def test_an_index_entry_is_made_every_64_kb_regardless_of_the_topic_config(way: str) -> None:
    store = filled(3000)
    if way == "append":
        store.log.roll()
    elif way == "recovery":
        store.crash()
        store.log.roll()
    else:
        store.log.roll()
        store.directory.close()
        store.disk.remove(store.folder / INDEX)
        store._start()
    assert longest_gap(store) <= 64 * 1024 + 100
    assert store.log.config.index_interval_bytes == HUGE, "what the topic says is shown as it is"


def found_in_steps(log: Log, offset: int, limit: int | None = None) -> tuple[FileSlice, int]:
    """What a Fetch at `offset` finds, and how often it let others have the event loop before."""
    steps = 0
    while True:
        try:
            found = log.read(offset, 1, log.end_offset if limit is None else limit, wait=False)
            assert found is not None
            return found, steps
        except NotInMemory as missing:
            assert missing.gets_on
            steps += 1
            assert steps < 100


def with_empty_index(store: Store) -> Segment:
    """The sealed segment, as an earlier release left it: without any entry in its index."""
    store.log.roll()
    segment = store.log._segments[0]
    segment.close_file()
    store.disk.replace(segment.path_of(INDEX_SUFFIX), b"", sync=False)
    return segment


def test_a_search_refines_a_sparse_index_for_the_next_search() -> None:
    store = filled()
    segment = with_empty_index(store)
    found, steps = found_in_steps(store.log, 8500)
    assert found.position == 8500 * (segment.size // BATCHES)
    assert steps == 4
    for offset in (8499, 8501, 7000, 4097, 3, 0):
        found, steps = found_in_steps(store.log, offset)
        assert (found.position, steps) == (offset * (segment.size // BATCHES), 0)
    assert offsets(store.log, start=8700) == list(range(8700, BATCHES))


def test_a_refined_index_of_a_sealed_segment_can_be_evicted_and_truncated() -> None:
    store = filled()
    segment = with_empty_index(store)
    found_in_steps(store.log, 8500)
    assert segment.index_bytes > 0
    segment.close_file()
    assert segment.index_bytes == 0
    found_in_steps(store.log, 8500)
    store.log.truncate_to(8000)
    entries = list(inspect_index(store.folder / INDEX, disk=store.disk))
    assert len(entries) >= 3
    assert [entry for entry in entries if entry.problems] == []
    store.log.append(batch(), 0)
    assert offsets(store.log, start=7800) == list(range(7800, 8001))
    assert offsets(store.reopen(), start=7800) == list(range(7800, 8001))


def test_the_refined_index_of_the_active_segment_is_written_to_disk() -> None:
    store = filled()
    segment = store.log._segments[-1]
    segment._index = OffsetIndex()
    end = segment.size
    limit = 8600  # the place of the limit is searched too
    found, steps = found_in_steps(store.log, 8500, limit)
    assert (found.position, steps) == (8500 * (end // BATCHES), 4)
    for _ in range(2000):
        store.log.append(batch(value=b"", key=None), 0)
    store.log.roll()
    index = OffsetIndex.decode(store.files()[INDEX], store.log.size)
    assert len(index) >= 5
    assert offsets(store.reopen(), start=10_800) == list(range(10_800, BATCHES + 2000))
