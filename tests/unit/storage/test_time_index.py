"""The time index and its file format."""

import pytest

from ottla.storage.offset_index import CorruptIndex
from ottla.storage.time_index import TimeIndex


def index_of(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex()
    for timestamp, offset in entries:
        index.add(timestamp, offset)
    return index


def test_entries_without_a_larger_timestamp_are_omitted() -> None:
    index = index_of((-1, 3), (100, 5), (100, 9), (90, 12), (101, 20))
    assert list(zip(index.timestamps, index.offsets, strict=True)) == [(100, 5), (101, 20)]


def test_floor_is_an_offset_before_which_all_is_older() -> None:
    index = index_of((100, 5), (200, 9))
    assert index.floor(50) == 0
    assert index.floor(100) == 5
    assert index.floor(150) == 5
    assert index.floor(200) == 9
    assert index.floor(999) == 9


def test_an_entry_is_twelve_bytes_big_endian() -> None:
    assert index_of((0x0102030405060708, 9)).encode() == bytes([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9])


def test_decode_is_the_reverse_of_encode() -> None:
    index = index_of((100, 5), (200, 9))
    again = TimeIndex.decode(index.encode())
    assert (again.timestamps, again.offsets, again.written) == (index.timestamps, index.offsets, 2)
    assert again.last == (200, 9)


@pytest.mark.parametrize(
    "data", [b"\0" * 11, index_of((100, 5)).encode() * 2, index_of((5, 1)).encode() + bytes(12)]
)
def test_decode_refuses_what_no_index_can_hold(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TimeIndex.decode(data)


def test_truncate_forgets_batches_from_an_offset_on() -> None:
    index = index_of((100, 5), (200, 9), (300, 12))
    index.written = 3
    index.truncate(9)
    assert (index.last, index.written) == ((100, 5), 1)
