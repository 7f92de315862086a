"""The list that a clean stop leaves counts only for the next start of Ottla, not after Apache Kafka used the
folder. Kafka here is Ottla under another name: it writes the same logs and checkpoints, and leaves the list
and the checksums alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.storage.checkpoints import CHECKPOINT_SUMS, CLEAN_SHUTDOWN, decode_list_id
from ottla.storage.clean_stop import OPENED, CleanStop
from ottla.storage.segment_list import SEGMENTS
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import T0, Store, batch, from_producer, offsets

FIRST = "00000000000000000000.log"
OPTIONS: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}
MARKER_OF_KAFKA = b'{"version":0,"brokerEpoch":7}'


def filled(disk: Any = None, records: int = 30) -> Store:
    store = Store(disk, **OPTIONS)
    for number in range(records):
        store.log.append(from_producer(number, timestamp=T0 + number), 0)
    return store


def use_as_kafka(disk: MemoryDisk, *, clean: bool) -> Store:
    """Append so much that the active segment is sealed, in a later leader epoch, then stop or be killed."""
    path = Store().path
    kept = {name: disk.read(path / name) for name in (SEGMENTS, CHECKPOINT_SUMS)}
    kafka = Store(disk, **OPTIONS)
    segments = kafka.log.segment_count
    for number in range(30, 60):
        kafka.log.append(from_producer(number, timestamp=T0 + number), 5)
    assert kafka.log.segment_count > segments + 1
    if clean:
        kafka.directory.close({("topic", 0): 60})
        disk.replace(path / CLEAN_SHUTDOWN, MARKER_OF_KAFKA, sync=True)
    else:
        kafka.directory.checkpoint({("topic", 0): 60})
        kafka.directory.abandon()
    for name, data in kept.items():
        disk.replace(path / name, data, sync=True)
    return kafka


@pytest.mark.parametrize("then", ["reopen", "crash"])
@pytest.mark.parametrize("clean", [True, False])
def test_what_kafka_appended_between_two_runs_is_read(
    clean: bool, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled()
    store.directory.close({("topic", 0): 30})
    kafka = use_as_kafka(store.disk, clean=clean)
    caplog.clear()
    again = Store(store.disk, **OPTIONS)
    for start in (lambda: again.log, *[getattr(again, then)] * 2):
        log = start()
        assert log.failure is None
        assert offsets(log) == list(range(60))
        assert log.leader_epochs.entries == kafka.log.leader_epochs.entries == [(0, 0), (5, 30)]
        assert again.directory.high_watermarks == {("topic", 0): 60}
        state = log.producers.get(7)
        assert state is not None and state.last_sequence == 59
    assert f"{SEGMENTS} is ignored" in caplog.text
    assert "damaged" not in caplog.text


def test_a_log_that_did_not_grow_is_not_opened_from_the_list_of_an_earlier_stop() -> None:
    store = filled()
    store.directory.close()
    store.disk.replace(store.path / CLEAN_SHUTDOWN, MARKER_OF_KAFKA, sync=True)
    stop = CleanStop(store.path, store.disk)
    stop.begin(store.disk.list(store.path))
    assert (stop.was_clean, stop.is_ours, stop.logs) == (True, False, {})


def test_the_marker_has_what_kafka_reads_and_the_id_of_the_list() -> None:
    store = filled()
    store.directory.close(broker_epoch=12)
    marker = store.disk.read(store.path / CLEAN_SHUTDOWN)
    content = json.loads(marker)
    assert (content["version"], content["brokerEpoch"]) == (0, 12)
    list_id = decode_list_id(marker)
    assert list_id is not None
    assert list_id.encode() in store.disk.read(store.path / SEGMENTS)


@pytest.mark.parametrize(
    "marker", [b"", b"{", b"[]", b"\xff", b'{"segmentsCheckpointId":3}', MARKER_OF_KAFKA]
)
def test_a_marker_without_an_id_is_not_ours(marker: bytes) -> None:
    assert decode_list_id(marker) is None
    store = filled()
    store.directory.close()
    store.disk.replace(store.path / CLEAN_SHUTDOWN, marker, sync=True)
    again = Store(store.disk, **OPTIONS)
    assert again.directory.was_clean
    assert offsets(again.log) == list(range(30))


def test_no_list_and_no_marker_are_left_while_the_folder_is_in_use() -> None:
    store = filled()
    store.reopen()
    assert {SEGMENTS, CLEAN_SHUTDOWN, OPENED}.isdisjoint(store.disk.list(store.path))
    store.directory.close()
    names = store.disk.list(store.path)
    assert {SEGMENTS, CLEAN_SHUTDOWN} <= set(names)
    assert OPENED not in names


def test_a_start_after_an_interrupted_one_still_compares_with_the_list() -> None:
    store = filled()
    store.directory.close()
    CleanStop(store.path, store.disk).begin(store.disk.list(store.path))
    store.disk.remove(store.folder / FIRST)
    again = Store(store.disk, **OPTIONS)
    assert not again.directory.was_clean
    assert again.log.failure is not None and FIRST in again.log.failure.message


class RecordingDisk(MemoryDisk):
    """Keeps a copy of itself before each change of a name in the data folder: what a kill there leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[MemoryDisk] = []

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        self.copies.append(self.copy())
        super().replace(path, data, sync=sync)

    def rename(self, source: Path, target: Path) -> None:
        self.copies.append(self.copy())
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.copies.append(self.copy())
        super().remove(path)


def test_a_damaged_log_is_found_damaged_after_a_kill_at_any_point_of_start_and_stop() -> None:
    disk = RecordingDisk()
    store = filled(disk)
    other = store.directory.create("other", 0, bytes(16), store.config)
    other.append(batch(3), 0)
    store.directory.close()
    # The middle of the log, which only the list knows of: the topic is compacted.
    middle = sorted(name for name in disk.list(store.folder) if name.endswith(".log"))[1]
    disk.remove(store.folder / middle)
    disk.copies.clear()
    for _ in range(2):
        again = Store(disk, **OPTIONS, cleanup_policy=("compact",))
        assert again.log.failure is not None and middle in again.log.failure.message
        again.directory.logs["other", 0].append(batch(3), 0)
        again.directory.close()
    assert len(disk.copies) > 5
    for copy in disk.copies:
        found = Store(copy, **OPTIONS, cleanup_policy=("compact",)).log
        assert found.failure is not None and middle in found.failure.message


def test_a_kill_at_any_point_of_start_and_stop_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = RecordingDisk()
    store = filled(disk)
    store.directory.checkpoint()
    disk.copies.clear()
    for _ in range(2):
        store.reopen()
    assert len(disk.copies) > 5
    for copy in disk.copies:
        again = Store(copy, **OPTIONS)
        for start in (lambda again=again: again.log, again.reopen):
            assert offsets(start()) == list(range(30))
    assert "damaged" not in caplog.text
    assert "is ignored" not in caplog.text
