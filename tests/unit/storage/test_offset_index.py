"""The sparse offset index and its file format."""

import pytest

from ottla.storage.offset_index import CorruptIndex, OffsetIndex


def index_of(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in entries:
        index.add(offset, position)
    return index


def test_floor_is_the_last_batch_that_ends_at_or_before_the_offset() -> None:
    index = index_of((9, 4100), (19, 8300), (40, 12500))
    assert index.floor(0) == 0
    assert index.floor(8) == 0
    assert index.floor(9) == 4100
    assert index.floor(18) == 4100
    assert index.floor(39) == 8300
    assert index.floor(40) == 12500
    assert index.floor(10**6) == 12500


def test_an_empty_index_starts_at_the_beginning() -> None:
    assert OffsetIndex().floor(5) == 0


def test_an_entry_is_eight_bytes_big_endian() -> None:
    assert index_of((1, 0x01020304)).encode() == bytes([0, 0, 0, 1, 1, 2, 3, 4])


def test_encode_can_omit_entries_that_are_already_written() -> None:
    index = index_of((1, 10), (2, 20), (3, 30))
    assert index.encode(2) == index_of((3, 30)).encode()


def test_decode_is_the_reverse_of_encode() -> None:
    index = index_of((1, 10), (2, 20), (300, 30))
    again = OffsetIndex.decode(index.encode(), 1000)
    assert (again.offsets, again.positions, again.written) == (index.offsets, index.positions, 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0" * 7, "whole number"),
        (index_of((1, 10), (2, 10)).encode(), "do not rise"),
        (index_of((2, 10), (2, 20)).encode(), "do not rise"),
        (index_of((1, 10), (2, 1000)).encode(), "outside"),
        (index_of((-1, 10)).encode(), "outside"),
        (index_of((1, 10)).encode() + bytes(80), "do not rise"),
    ],
)
def test_decode_refuses_what_no_index_can_hold(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptIndex, match=reason):
        OffsetIndex.decode(data, 1000)


def test_truncate_forgets_batches_from_a_position_on() -> None:
    index = index_of((1, 10), (2, 20), (3, 30))
    index.written = 3
    index.truncate(20)
    assert list(index.positions) == [10]
    assert index.written == 1
