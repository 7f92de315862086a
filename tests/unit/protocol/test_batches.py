"""Batches by their headers: what is read of the bytes, and where a batch ends."""

import struct

import pytest

from ottla.protocol.batches import (
    HEADER,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    batch_follows,
    read_header,
    read_outline,
)

BATCH = HEADER.pack(7, 52, 4, MAGIC, 99, TRANSACTIONAL, 0, 1, 2, 3, 4, 5, 1) + b"abc"


def test_the_outline_of_a_batch_is_what_its_header_says() -> None:
    header = read_header(b"..." + BATCH, 3)
    assert read_outline(b"..." + BATCH, 3) == (header.batch_length, header.magic, header.attributes)


def test_a_batch_without_its_attributes_has_no_outline() -> None:
    assert read_outline(BATCH[:23])
    with pytest.raises(struct.error):
        read_outline(BATCH[:22])


@pytest.mark.parametrize(
    ("behind", "follows"),
    [
        (b"", False),
        (BATCH[:LENGTH_OVERHEAD], False),
        (BATCH[:-1], False),
        (BATCH, True),
        (BATCH + b"x", True),
    ],
)
def test_a_batch_follows_when_all_its_bytes_are_there(behind: bytes, follows: bool) -> None:
    assert batch_follows(BATCH + behind, len(BATCH)) is follows
