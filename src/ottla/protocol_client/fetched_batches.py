"""The batches of a fetch answer, with what can be checked about their order.

A batch's base offset and length stand before its CRC, so a checksum does not show that they were damaged; and
a broker sends its files without looking at every batch in them. A reader that believed such an offset would
skip records, or end early, and report success. What a reader can check: offsets rise from batch to batch,
also to the one that is cut off at the end of the answer, and lie below the high watermark that came with
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.protocol.batches import MAGIC, BatchHeader, headers

_NOT_KNOWN = -1


class WrongOffsets(Exception):
    """A batch cannot have the offset it says it has."""


def in_order(
    records: bytes | bytearray | memoryview, high_watermark: int = _NOT_KNOWN
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch. WrongOffsets at the first that cannot be right."""
    following = end = 0
    for position, header in headers(records):
        if header[3] != MAGIC:
            yield position, header  # an older format, which the caller refuses
            return
        base, delta = header[0], header[6]
        if base < following or delta < 0:
            raise WrongOffsets(
                f"a batch with offset {base} (last delta {delta}) follows offset {following - 1}"
            )
        if _NOT_KNOWN < high_watermark <= base + delta:
            raise WrongOffsets(
                f"a batch ends with offset {base + delta}, but the partition ends at offset {high_watermark}"
            )
        yield position, header
        following, end = base + delta + 1, position + header.size
    rest = bytes(records[end : end + 8])
    if end and len(rest) == 8 and int.from_bytes(rest, "big", signed=True) < following:
        offset = int.from_bytes(rest, "big", signed=True)
        raise WrongOffsets(f"a batch with offset {offset} follows offset {following - 1}")
