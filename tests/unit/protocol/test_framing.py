"""Frames out of a stream of bytes, however the stream is cut into pieces."""

from __future__ import annotations

from random import Random

import pytest

from ottla.protocol.framing import FrameReader, FrameTooLarge


def feed(reader: FrameReader, stream: bytes, rng: Random, most: int) -> list[bytes]:
    frames: list[bytes] = []
    position = 0
    while position < len(stream):
        buffer = reader.buffer()
        assert len(buffer) > 0
        count = min(rng.randint(1, most), len(buffer), len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position += count
        frames += [bytes(frame) for frame in reader.received(count)]
    return frames


@pytest.mark.parametrize("most", [1, 3, 100, 5_000, 1_000_000])
def test_frames_come_out_whole_however_they_are_cut(most: int) -> None:
    rng = Random(most)
    sizes = [0, 1, 65_531, 65_532, 65_533, 5, 200_000, 7, 0, 70_000] if most > 3 else [0, 1, 5, 300, 2]
    frames = [rng.randbytes(size) for size in sizes]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    assert feed(FrameReader(1 << 20), stream, rng, most) == frames


def test_a_frame_may_be_kept_while_others_are_received() -> None:
    reader = FrameReader(1000)
    kept = []
    for value in (b"first", b"second"):
        stream = len(value).to_bytes(4, "big") + value
        reader.buffer()[: len(stream)] = stream
        kept += list(reader.received(len(stream)))
    assert [bytes(frame) for frame in kept] == [b"first", b"second"]


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_that_is_not_allowed_takes_no_memory(size: int) -> None:
    reader = FrameReader(1000)
    before = reader.memory
    reader.buffer()[:4] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(FrameTooLarge):
        list(reader.received(4))
    assert reader.memory == before
