"""`ottla log inspect` shows what a broker wrote, and finds what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla.testing
from conformance.command import Command
from ottla.protocol.compression import Codec
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one batch per codec and an index, as a broker leaves it."""
    folder = tmp_path_factory.mktemp("data")
    with ottla.testing.broker(data=folder) as broker, Wire(broker.bootstrap_servers) as wire:
        broker.create_topic("t", config={"index.interval.bytes": 1})
        for codec in Codec:
            with Producer(wire, "t", codec=codec) as producer:
                for number in (1, 2):
                    producer.add(b"k", f"{codec.label} {number}".encode(), [("h", b"1")])
    return folder


@pytest.fixture
def written(data: Path, tmp_path: Path) -> Path:
    """The partition's folder, in a copy that a test may damage."""
    return shutil.copytree(data, tmp_path / "data") / "t-0"


@pytest.fixture
def inspect() -> Callable[..., Any]:
    command = Command("127.0.0.1:1")
    return lambda *arguments: command("log", "inspect", *map(str, arguments))


SEGMENT = "00000000000000000000.log"


def test_a_segment_dump_lists_every_batch(inspect: Callable[..., Any], written: Path) -> None:
    shown = inspect(written / SEGMENT)
    assert shown.code == 0, shown
    title, *batches, summary = shown.lines
    assert title.split()[:5] == ["POSITION", "OFFSETS", "RECORDS", "SIZE", "CODEC"]
    assert [row.split()[1] for row in batches] == ["0-1", "2-3", "4-5", "6-7", "8-9"]
    assert [row.split()[5] for row in batches] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert summary.startswith(f"{written / SEGMENT}: 5 batches, 10 records, offsets 0 to 9, ")
    assert summary.endswith("no problems")


def test_a_segment_dump_as_json_lists_every_batch(inspect: Callable[..., Any], written: Path) -> None:
    batches = [json.loads(line) for line in inspect(written / SEGMENT, "--json", "--records").lines]
    assert [b["compression"] for b in batches] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert all(b["crc_ok"] and not b["problems"] and b["producer_id"] >= 0 for b in batches)
    assert [c["value"] for c in batches[4]["contents"]] == ["zstd 1", "zstd 2"]
    assert batches[0]["contents"][0]["headers"] == [{"key": "h", "value": "1"}]


def test_records_are_shown_on_request(inspect: Callable[..., Any], written: Path) -> None:
    lines = inspect(written / SEGMENT, "--records").lines
    assert lines[2].split()[0] == "0"
    assert lines[2].endswith("  h=1  k  none 1")
    assert lines[-2].endswith("  h=1  k  zstd 2")


def test_a_whole_folder_is_checked(inspect: Callable[..., Any], written: Path) -> None:
    shown = inspect(written)
    assert shown.code == 0, shown
    summaries = [line for line in shown.lines if line.startswith(str(written))]
    assert [Path(line.split(":")[0]).suffix for line in summaries][:3] == [".log", ".index", ".timeindex"]
    assert all(line.endswith("no problems") for line in summaries)


def test_indexes_are_shown_entry_by_entry(inspect: Callable[..., Any], written: Path) -> None:
    offsets = inspect(written / SEGMENT.replace(".log", ".index"))
    assert offsets.code == 0, offsets
    assert offsets.lines[0].split() == ["OFFSET", "POSITION"]
    assert [line.split()[0] for line in offsets.lines[1:-1]] == ["3", "5", "7", "9"]
    times = inspect(written / SEGMENT.replace(".log", ".timeindex"), "--json")
    assert all(json.loads(line)["timestamp"] > 1_600_000_000_000 for line in times.lines)


def test_a_flipped_bit_is_reported(inspect: Callable[..., Any], written: Path) -> None:
    segment = written / SEGMENT
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    shown = inspect(segment, "--records")
    assert shown.code == 1
    assert "WRONG" in shown.lines[1]
    assert "problem: the CRC is wrong" in shown.lines[2]
    assert shown.lines[-1].endswith(", 1 problem")
    assert shown.err == "1 problem found\n"
    assert json.loads(inspect(segment, "--json").lines[0])["crc_ok"] is False


def test_a_torn_tail_is_reported_after_all_batches_before_it(
    inspect: Callable[..., Any], written: Path
) -> None:
    segment = written / SEGMENT
    segment.write_bytes(segment.read_bytes()[:-20])
    shown = inspect(segment)
    assert shown.code == 1
    assert "cut off" in shown.lines[-2]
    assert ": 4 batches, 8 records, offsets 0 to 7, " in shown.lines[-1]


def test_an_index_entry_without_a_batch_is_reported(inspect: Callable[..., Any], written: Path) -> None:
    index = written / SEGMENT.replace(".log", ".index")
    data = bytearray(index.read_bytes())
    data[7] ^= 1
    index.write_bytes(data)
    shown = inspect(written)
    assert shown.code == 1
    assert "problem: no batch that ends at offset 3 begins at byte" in shown.out


@pytest.mark.parametrize("name", ["nothing", "meta.properties", ""])
def test_a_file_that_is_not_a_log_file_is_refused(
    inspect: Callable[..., Any], written: Path, name: str
) -> None:
    refused = inspect(written.parent / name)
    assert refused.code == 2
    assert refused.err.startswith("error: ")
    if not name:
        assert "It has 1 partition folder: name one of them." in refused.err
