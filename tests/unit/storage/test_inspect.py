"""What `ottla log inspect` shows."""

from pathlib import Path

from ottla.protocol.compression import Codec
from ottla.storage.files import RealDisk
from ottla.storage.inspect import inspect_index, inspect_segment, inspect_snapshot, inspect_time_index
from unit.storage.logs import Store, batch, from_producer

NAME = "00000000000000000000"


def closed(tmp_path: Path) -> Path:
    store = Store(RealDisk(), tmp_path, index_interval_bytes=0)
    for number, codec in enumerate(Codec):
        store.log.append(from_producer(number * 3, 3, codec=codec, value=b"%d" % number), 2)
    store.directory.close()
    return store.folder


def test_batches_are_shown_by_their_headers(tmp_path: Path) -> None:
    reports = list(inspect_segment(closed(tmp_path) / f"{NAME}.log"))
    assert [report.compression for report in reports] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert all(report.crc_ok and report.problems == [] and report.records is None for report in reports)
    assert [report.header.base_offset for report in reports if report.header] == [0, 3, 6, 9, 12]
    assert reports[0].position == 0
    assert [a.position + a.size for a in reports[:-1]] == [b.position for b in reports[1:]]


def test_records_are_decoded_on_request(tmp_path: Path) -> None:
    reports = list(inspect_segment(closed(tmp_path) / f"{NAME}.log", records=True))
    assert [record.value for report in reports for record in report.records or []] == [
        b"%d" % (number // 3) for number in range(15)
    ]


def test_a_damaged_batch_is_reported_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = closed(tmp_path) / f"{NAME}.log"
    second = list(inspect_segment(path))[1]
    data = bytearray(path.read_bytes())
    data[second.position + second.size - 1] ^= 1
    path.write_bytes(data)
    reports = list(inspect_segment(path, records=True))
    assert [report.crc_ok for report in reports] == [True, False, True, True, True]
    assert "CRC" in reports[1].problems[0]
    assert reports[1].records is None


def test_an_unfinished_write_is_reported_as_such(tmp_path: Path) -> None:
    path = closed(tmp_path) / f"{NAME}.log"
    whole = path.read_bytes()
    for rest in (bytes(batch(3))[:30], bytes(batch(3))[:100]):
        path.write_bytes(whole + rest)
        last = list(inspect_segment(path))[-1]
        assert (last.header, last.position, last.size) == (None, len(whole), len(rest))
        assert "unfinished" in last.problems[0]


def test_index_entries_are_checked_against_the_log(tmp_path: Path) -> None:
    folder = closed(tmp_path)
    entries = list(inspect_index(folder / f"{NAME}.index"))
    assert [entry.offset for entry in entries] == [5, 8, 11, 14]
    assert all(entry.problems == [] for entry in entries)
    (folder / f"{NAME}.index").write_bytes(bytes([0, 0, 0, 5, 0, 0, 0, 9]))
    assert "byte 9" in next(inspect_index(folder / f"{NAME}.index")).problems[0]


def test_time_index_and_producer_snapshot_are_shown(tmp_path: Path) -> None:
    folder = closed(tmp_path)
    entries = list(inspect_time_index(folder / f"{NAME}.timeindex"))
    assert entries[-1].timestamp is not None
    assert all(entry.problems == [] for entry in entries)
    (producer,) = inspect_snapshot(folder / "00000000000000000015.snapshot")
    assert (producer.producer_id, producer.last_sequence) == (7, 14)
