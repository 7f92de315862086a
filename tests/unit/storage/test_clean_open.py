"""After a clean stop a log whose files are as the stop left them is opened without being read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.errors import ApiError
from ottla.storage.segment_list import LogFiles, SegmentFiles, decode, encode
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import T0, TOPIC_ID, Store, batch, from_producer, offsets

Fill = Callable[[Store], None]


class WatchedDisk(FaultyDisk):
    """Knows which files were opened."""

    def __init__(self) -> None:
        super().__init__(MemoryDisk())
        self.opened: list[str] = []

    def open(self, path: Path, *, create: bool = False) -> Any:
        self.opened.append(path.name)
        return super().open(path, create=create)


def short(store: Store) -> None:
    store.log.append(batch(3, timestamp=T0 + 5), 2)


def long(store: Store) -> None:
    for number in range(30):
        store.log.append(from_producer(number * 2, 2, timestamp=T0 + number), number // 10)


def nothing(store: Store) -> None:
    store.log.begin_epoch(4)


def filled(fill: Fill, disk: Any = None) -> Store:
    store = Store(disk, segment_bytes=1000, index_interval_bytes=150)
    fill(store)
    return store


@pytest.mark.parametrize("fill", [short, long, nothing])
def test_no_segment_is_read_after_a_clean_stop(fill: Fill) -> None:
    disk = WatchedDisk()
    store = filled(fill, disk)
    store.directory.close()
    disk.opened.clear()
    store.crash()
    assert store.report.clean
    assert [name for name in disk.opened if name.endswith((".log", "index"))] == []


@pytest.mark.parametrize("fill", [short, long, nothing])
def test_a_log_is_unchanged_after_a_clean_stop(fill: Fill) -> None:
    store = filled(fill)
    before = store.log
    epochs = [entry for entry in before.leader_epochs.entries if entry[1] < before.end_offset]
    producer = before.producers.get(7)
    log = store.reopen()
    assert store.report.clean
    assert (log.end_offset, log.log_start_offset) == (before.end_offset, before.log_start_offset)
    assert log.recovery_point == log.end_offset
    assert log.topic_id == before.topic_id
    assert log.leader_epochs.entries == epochs
    assert [segment.max_timestamp for segment in log.segments] == [s.max_timestamp for s in before.segments]
    assert offsets(log) == list(range(log.end_offset))
    again = log.producers.get(7)
    assert (again and again.batches) == (producer and producer.batches)


def test_index_entries_are_the_same_as_without_a_restart() -> None:
    restarted, other = Store(index_interval_bytes=400), Store(index_interval_bytes=400)
    for number in range(20):
        for store in (restarted, other):
            store.log.append(batch(1, timestamp=T0 + number), 0)
        if number == 1:
            restarted.reopen()
    restarted.directory.close()
    other.directory.close()
    assert restarted.files("index") == other.files("index")
    assert restarted.files(".index")


def test_producers_that_expired_before_the_stop_stay_forgotten() -> None:
    store = Store(segment_bytes=200, index_interval_bytes=10_000)
    for number in range(4):
        store.log.append(from_producer(number), 0)
    assert store.log.segment_count > 1
    store.log.expire_producers(T0 + 10**9, 1000)
    log = store.reopen()
    assert store.report.clean
    assert log.producers.active == []


def test_a_damaged_batch_of_a_short_log_is_found_when_it_is_read() -> None:
    store = filled(short)
    store.directory.close()
    store.damage("00000000000000000000.log", 8)
    log = store.crash()
    assert log.failure is None
    with pytest.raises(ApiError, match=r"00000000000000000000\.log"):
        log.read(0, 1000, 3)
    assert log.failure is not None


@pytest.mark.parametrize("name", ["00000000000000000000.log.deleted", "00000000000000000041.index", "x.tmp"])
def test_unknown_files_are_removed_and_no_records_are_lost(name: str) -> None:
    store = filled(long)
    before = offsets(store.log)
    store.directory.close()
    store.disk.replace(store.folder / name, b"", sync=True)
    log = store.crash()
    store.directory.delete_all_pending()
    assert name not in store.files()
    assert offsets(log) == before


def test_a_missing_epochs_file_is_rebuilt_from_the_log() -> None:
    store = filled(long)
    epochs = store.log.leader_epochs.entries
    store.directory.close()
    store.disk.remove(store.folder / "leader-epoch-checkpoint")
    assert store.crash().leader_epochs.entries == epochs
    store.directory.close()
    assert store.crash().leader_epochs.entries == epochs
    assert "leader-epoch-checkpoint" in store.files()


def test_the_list_of_files_round_trips() -> None:
    segments = (SegmentFiles(0, 900, 16, 24, None, 0), SegmentFiles(40, 0, 0, 0, -1, 40))
    logs = {
        ("a.b-c", 3): LogFiles(bytes(range(16)), 5, 40, True, True, ((0, 5), (3, 9)), segments),
        ("empty", 0): LogFiles(bytes(16), 0, 0, False, False, (), segments[1:]),
    }
    assert decode(encode("an-id", logs)) == ("an-id", logs)


@pytest.mark.parametrize("with_list", [True, False])
@pytest.mark.parametrize("ends", ["close close", "close abandon", "abandon close", "abandon abandon"])
def test_empty_and_short_logs_give_no_warning_over_two_starts(
    ends: str, with_list: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    for partition in range(1, 50):
        store.directory.create("topic", partition, TOPIC_ID, store.config)
    store.log.append(batch(3), 0)
    for end in ends.split():
        getattr(store.directory, end)()
        if not with_list:
            store.disk.remove(store.path / "segments-checkpoint")
        store._open()
        for log in store.directory.logs.values():
            log.offset_for_timestamp(T0)
            log.max_timestamp()
            log.apply_retention(log.end_offset)
    for log in store.directory.logs.values():
        log.append(batch(1, value=b"x" * 10_000), 0)
    store.directory.close()
    assert [line for line in caplog.messages if "index" in line] == []
