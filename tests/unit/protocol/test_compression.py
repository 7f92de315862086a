"""Compression: what real clients write is read, what we write they read, and hostile input stays harmless."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import aiokafka.codec
import cramjam
import pytest

from ottla.protocol.compression import (
    DENSITIES,
    LEVELS,
    Codec,
    CompressionError,
    DecompressedTooLarge,
    compress,
    decompress,
    open_body,
)

CODECS = list(Codec)
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b"line %d of a text that compresses well\n" % n for n in range(5000))
NOISE = random.Random(7).randbytes(200_000)


def zstd_run_frame(blocks: int, *, window_log: int = 17, block_size: int = 128 * 1024) -> bytes:
    """A zstd frame without a content size that says `blocks` times: the same byte, 128 KB of it."""
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3])
    run = struct.pack("<I", block_size << 3 | 1 << 1)[:3] + b"a"
    last = struct.pack("<I", block_size << 3 | 1 << 1 | 1)[:3] + b"a"
    return header + run * (blocks - 1) + last


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, b"\0" * 3_000_000], ids=len)
def test_compressed_data_round_trips(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), max_size=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken_for_input(codec: Codec, kind: type) -> None:
    packed = compress(codec, kind(TEXT))
    assert decompress(codec, kind(packed), len(TEXT)) == TEXT
    assert decompress(codec, memoryview(b"before" + packed)[6:], len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_more_than_allowed_is_refused(codec: Codec) -> None:
    with pytest.raises(CompressionError, match=f"more than the {len(TEXT) - 1} bytes allowed"):
        decompress(codec, compress(codec, TEXT), max_size=len(TEXT) - 1)


@pytest.mark.parametrize(("codec", "level"), [(c, n) for c, ends in LEVELS.items() for n in (*ends, 5)])
def test_every_level_of_kafkas_ranges_is_accepted(codec: Codec, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT[:20_000], level), 20_000) == TEXT[:20_000]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_higher_level_packs_tighter(codec: Codec) -> None:
    low, high = LEVELS[codec]
    assert len(compress(codec, TEXT, high)) < len(compress(codec, TEXT, low))


def test_lz4_level_nine_is_the_fast_default_and_others_pack_tighter() -> None:
    data = random.Random(3).choices([TEXT[i : i + 40] for i in range(0, 4000, 7)], k=2000)
    text = b"".join(data)
    assert compress(Codec.LZ4, text) == compress(Codec.LZ4, text, 9)
    assert len(compress(Codec.LZ4, text, 12)) < len(compress(Codec.LZ4, text))


def test_lz4_frames_have_independent_blocks_since_java_reads_no_others() -> None:
    flags = compress(Codec.LZ4, TEXT)[4]
    assert flags >> 6 == 1, "frame format version"
    assert flags & 0x20, "blocks are independent"


def test_snappy_is_written_as_the_java_library_frames_it() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (first,) = struct.unpack_from(">i", packed, 16)
    assert len(bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first]))) == 32 * 1024


def test_snappy_without_framing_is_read_too() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), len(TEXT)) == TEXT


def test_snappy_version_numbers_in_the_wrong_byte_order_do_no_harm() -> None:
    packed = bytearray(compress(Codec.SNAPPY, TEXT))
    packed[8:16] = struct.pack("<ii", 1, 1)
    assert decompress(Codec.SNAPPY, packed, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("codec", "encode", "decode"),
    [
        (Codec.GZIP, aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
        (Codec.SNAPPY, aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
        (Codec.LZ4, aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
        (Codec.ZSTD, aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
    ],
)
def test_data_is_exchanged_with_aiokafka_both_ways(codec: Codec, encode, decode) -> None:  # type: ignore[no-untyped-def]
    assert decompress(codec, encode(TEXT), len(TEXT)) == TEXT
    assert bytes(decode(compress(codec, TEXT))) == TEXT


def test_several_gzip_members_are_read_one_after_the_other() -> None:
    packed = gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(NOISE)
    assert decompress(Codec.GZIP, packed, len(TEXT) + len(NOISE)) == TEXT + NOISE
    with pytest.raises(CompressionError, match="allowed"):
        decompress(Codec.GZIP, packed, len(TEXT) + len(NOISE) - 1)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_several_frames_are_read_one_after_the_other(codec: Codec) -> None:
    packed = compress(codec, TEXT) + compress(codec, NOISE)
    assert decompress(codec, packed, len(TEXT) + len(NOISE)) == TEXT + NOISE
    with pytest.raises(CompressionError, match="allowed"):
        decompress(codec, packed, len(TEXT) + len(NOISE) - 1)


def test_a_zstd_frame_that_declares_no_size_is_read() -> None:
    assert decompress(Codec.ZSTD, zstd_run_frame(30), 4_000_000) == b"a" * 30 * 128 * 1024


def test_a_zstd_frame_that_declares_a_false_size_is_refused() -> None:
    packed = bytearray(compress(Codec.ZSTD, b"x" * 1000))
    assert packed[4] & 0x40, "a frame with a size of two bytes"
    packed[5:7] = struct.pack("<H", 65_535)
    with pytest.raises(CompressionError):
        decompress(Codec.ZSTD, packed, 1 << 20)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_input_cut_anywhere_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT[:100] + NOISE[:100])
    cuts = range(len(packed))
    if codec is Codec.SNAPPY:
        cuts = range(17, len(packed))  # 16 bytes are a whole stream that holds nothing
    for cut in cuts:
        with pytest.raises(CompressionError):
            decompress(codec, packed[:cut], 1 << 20)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_trailing_garbage_is_refused(codec: Codec) -> None:
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, TEXT) + b"garbage at the end", 1 << 20)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_and_random_input_gives_an_error_or_bytes_within_the_limit(codec: Codec) -> None:
    rng = random.Random(int(codec))
    packed = compress(codec, TEXT[:3000] + NOISE[:300])
    raw = bytes(cramjam.snappy.compress_raw(TEXT[:3000]))
    for turn in range(3000):
        if turn % 3 == 0:
            data = bytearray(rng.randbytes(rng.randrange(200)))
            if turn % 2:
                data[: rng.randrange(20)] = packed[: rng.randrange(20)]
        else:
            data = bytearray(raw if codec is Codec.SNAPPY and turn % 2 else packed)
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(CompressionError):
            assert len(decompress(codec, data, 5000)) <= 5000


def test_an_unknown_codec_is_refused() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(CompressionError, match=f"unknown compression codec {codec}"):
            decompress(codec, b"data", 100)
        with pytest.raises(CompressionError, match=f"unknown compression codec {codec}"):
            compress(codec, b"data")


def test_a_snappy_size_that_the_input_cannot_hold_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(CompressionError, match="cannot hold"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20, 1 << 40)


def test_many_tiny_members_frames_and_blocks_take_bounded_time() -> None:
    empty_block = struct.pack(">i", 1) + b"\0"
    floods = [
        (Codec.GZIP, gzip.compress(b"") * 50_000),
        (Codec.ZSTD, zstd_run_frame(1, window_log=27, block_size=1) * 100_000),
        (Codec.LZ4, compress(Codec.LZ4, b"") * 90_000),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"") + empty_block * 200_000),
    ]
    for codec, data in floods:
        began = time.perf_counter()
        with contextlib.suppress(CompressionError):
            decompress(codec, data, 1 << 20)
        assert time.perf_counter() - began < 5, codec


def xerial(blocks: list[bytes]) -> bytes:
    """Blocks in the framing of the Java library."""
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in packed)
    return compress(Codec.SNAPPY, b"") + framed


def opened_by_both(codec: Codec, packed: bytes) -> list[bytes]:
    """What the way for small bodies and the one for large bodies make of it."""
    body, size = open_body(codec, packed, 1 << 27)
    return [decompress(codec, packed, 1 << 27), bytes(body[:size])]


@pytest.mark.parametrize("size", [1, 5000])  # the larger one is opened in a memory map
def test_very_many_gzip_members_are_refused(size: int) -> None:
    member = gzip.compress(NOISE[:size])
    most = gzip.compress(b"ab") + member * 255
    assert len(set(opened_by_both(Codec.GZIP, most))) == 1
    for open_it in (decompress, open_body):
        with pytest.raises(CompressionError, match="more than 256 members"):
            open_it(Codec.GZIP, most + member, 1 << 27)


@pytest.mark.parametrize("size", [0, 1, 511])
def test_very_many_tiny_snappy_blocks_are_refused(size: int) -> None:
    block = bytes(size)
    assert opened_by_both(Codec.SNAPPY, xerial([block] * 256)) == [block * 256] * 2
    for open_it in (decompress, open_body):
        with pytest.raises(CompressionError, match=r"snappy: \d+ blocks for the first"):
            open_it(Codec.SNAPPY, xerial([block] * 150_000), 1 << 27)


def test_any_number_of_snappy_blocks_of_a_kilobyte_is_read() -> None:
    block = bytes(range(256)) * 4
    assert opened_by_both(Codec.SNAPPY, xerial([block] * 5000 + [b"x"])) == [block * 5000 + b"x"] * 2


MEMORY_OF_BOMBS = """
import struct, sys
from ottla.protocol.compression import Codec, CompressionError, compress, decompress
sys.path.insert(0, sys.argv[1])
from test_compression import zstd_run_frame
import zlib

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def gzip_bomb(size):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    step = bytes(1 << 20)
    return b"".join([packer.compress(step) for _ in range(size >> 20)] + [packer.flush()])

lz4_block = compress(Codec.LZ4, bytes(1 << 20))
bombs = [
    (Codec.GZIP, gzip_bomb(300 << 20)),
    (Codec.ZSTD, zstd_run_frame(8000)),
    (Codec.ZSTD, zstd_run_frame(8000, window_log=27)),
    (Codec.LZ4, lz4_block[:7] + lz4_block[7:-4] * 300 + lz4_block[-4:]),
    (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(64 << 20))),
]
limit = 4 << 20
open("/proc/self/clear_refs", "w").write("5")
before = peak()
for codec, bomb in bombs:
    try:
        decompress(codec, bomb, limit)
    except CompressionError as error:
        assert "allowed" in str(error), error
    else:
        raise SystemExit(f"{codec}: a bomb passed")
grown = peak() - before
print(grown)
assert grown < 5 * limit, f"memory grew by {grown}"
"""


def test_decompression_bombs_use_memory_within_a_small_multiple_of_the_limit() -> None:
    """Measured by the kernel in an own process, so that what the native libraries allocate counts too."""
    folder = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", MEMORY_OF_BOMBS, folder], check=True, timeout=60)


def test_gzip_made_by_a_raw_zlib_stream_is_refused() -> None:
    with pytest.raises(CompressionError, match="gzip"):
        decompress(Codec.GZIP, zlib.compress(TEXT), 1 << 20)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
def test_a_body_is_opened_as_it_is_decompressed(codec: Codec, size: int) -> None:
    data = (bytes(range(250)) * 12_000)[:size]
    packed = compress(codec, data)
    body, length = open_body(codec, packed, 1 << 27)
    assert body[:length] == data
    assert open_body(codec, packed, size)[1] == size
    if size:
        with pytest.raises(DecompressedTooLarge):
            open_body(codec, packed, size - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_large_body_that_is_damaged_is_an_error(codec: Codec) -> None:
    packed = compress(codec, random.Random(5).randbytes(2_000_000))
    for damaged in (packed[:-7], packed[: len(packed) // 2], b"\xa5" * len(packed)):
        with pytest.raises(CompressionError):
            open_body(codec, damaged, 1 << 27)


def test_members_of_gzip_are_opened_one_after_the_other() -> None:
    one, two = bytes(2_000_000), b"two"
    body, length = open_body(Codec.GZIP, compress(Codec.GZIP, one) + compress(Codec.GZIP, two), 1 << 27)
    assert body[:length] == one + two


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_no_codec_compresses_above_its_assumed_ratio(codec: Codec) -> None:
    """A batch whose header claims more is refused without a look at its records."""
    size = 100_000_000
    packed = compress(codec, bytes(size), {Codec.GZIP: 9, Codec.ZSTD: 19}.get(codec))
    assert size <= len(packed) * DENSITIES[codec]
