"""Java reads what we write: Apache Kafka's own DumpLogSegments opens our batches of every codec and level."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # for bench, which carries Apache Kafka

from bench.peers.kafka import classpath

from ottla.protocol.compression import LEVELS, Codec
from ottla.protocol.records import Record, encode_batch, recompress

pytestmark = pytest.mark.slow

EACH = 2000
CASES: list[tuple[Codec, int | None]] = [(codec, None) for codec in Codec] + [
    (codec, level) for codec, ends in LEVELS.items() for level in ends
]


def test_java_reads_our_batches_of_every_codec_and_level(tmp_path: Path) -> None:
    segment = bytearray()
    offset = 0
    for codec, level in CASES:
        records = [
            Record(
                offset + n,
                1_700_000_000_000 + n,
                None if n % 7 == 0 else b"key-%d" % n,
                b"value %d of %s, long enough to be worth compressing" % (n, codec.label.encode()),
                [("trace", b"%d" % n), ("null", None)] if n % 5 == 0 else [],
            )
            for n in range(EACH)
        ]
        # Half of them are made at once, half are compressed anew, as a topic's compression.type demands.
        batch = encode_batch(records, base_offset=offset, codec=codec, level=level, leader_epoch=0)
        segment += batch if level is None else recompress(batch, codec, level, max_size=1 << 24)
        offset += EACH
    file = tmp_path / "t-0" / "00000000000000000000.log"
    file.parent.mkdir()
    file.write_bytes(segment)
    tool = ["java", "-Xmx256M", "-cp", classpath(), "org.apache.kafka.tools.DumpLogSegments"]
    options = ["--deep-iteration", "--print-data-log", "--files", str(file)]
    run = subprocess.run([*tool, *options], capture_output=True, text=True, timeout=90, check=True)
    dump = run.stdout
    assert len(re.findall(r"^baseOffset: .* isvalid: true$", dump, re.MULTILINE)) == len(CASES), dump[:3000]
    codecs = re.findall(r"^baseOffset: .* compresscodec: (\w+)", dump, re.MULTILINE)
    assert codecs == [codec.label for codec, _ in CASES]
    payloads = re.findall(r"^\| offset: (\d+) .* payload: value (\d+) of (\w+),", dump, re.MULTILINE)
    assert payloads == [
        (str(place * EACH + n), str(n), codec.label)
        for place, (codec, _) in enumerate(CASES)
        for n in range(EACH)
    ]
