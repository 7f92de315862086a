"""Folders of partitions that were deleted or set aside."""

from pathlib import Path

import pytest

from ottla.clock import ManualClock
from ottla.storage.files import RealDisk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.storage.removed_folders import STRAY_DELAY_MS
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import ROOT, T0, TOPIC_ID, Store, batch, offsets, values


def test_a_recreated_topic_begins_empty() -> None:
    store = Store()
    store.log.append(batch(3), 0)
    log = store.directory.create("topic", 0, bytes(15) + b"\1", LogConfig())
    assert (log.end_offset, log.topic_id) == (0, bytes(15) + b"\1")


def test_a_recreated_partition_does_not_inherit_the_offsets_of_the_old_one() -> None:
    store = Store()
    store.log.append(batch(30), 0)
    store.log.flush()
    store.log.delete_records_before(20)
    store.directory.checkpoint()
    store.directory.delete("topic", 0)
    store.log = store.directory.create("topic", 0, bytes(15) + b"\1", LogConfig())
    store.log.append(batch(3), 0)
    log = store.crash()
    assert log.failure is None
    assert offsets(log) == [0, 1, 2]


def test_a_deleted_partition_is_renamed_at_once_and_removed_after_the_delay() -> None:
    store = Store()
    store.log.append(batch(1), 0)
    store.directory.delete("topic", 0)
    names = [name for name in store.disk.list(ROOT) if name.endswith("-delete")]
    assert len(names) == 1
    assert names[0].startswith("topic-0.")
    assert store.directory.logs == {}
    store.clock.advance(60_000)
    assert store.directory.delete_pending() == 1
    assert not [name for name in store.disk.list(ROOT) if "topic" in name]


def test_a_partition_whose_deletion_was_interrupted_does_not_come_back() -> None:
    store = Store()
    store.directory.delete("topic", 0)
    store.directory.abandon()
    again = LogDirectory(ROOT, store.disk, ManualClock())
    again.open()
    assert again.logs == {}
    assert not [name for name in store.disk.list(ROOT) if name.endswith("-delete")]


def strays(store: Store) -> list[str]:
    return [name for name in store.disk.list(ROOT) if name.endswith("-stray")]


def test_a_partition_set_aside_is_kept_for_days_over_restarts_and_short_space() -> None:
    store = Store()
    store.log.append(batch(1), 0)
    store.directory.set_aside([("topic", 0)])
    assert store.directory.logs == {}
    (name,) = strays(store)
    assert name.startswith("topic-0.")
    store.clock.advance(STRAY_DELAY_MS - 1000)
    store.directory.delete_all_pending()
    for end in (LogDirectory.close, LogDirectory.abandon):
        end(store.directory)
        store._open()
        assert store.directory.logs == {}
        store.directory.delete_all_pending()
        assert strays(store) == [name]
    store.clock.advance(1000)
    store.directory.delete_pending()
    assert strays(store) == []


def test_a_partition_set_aside_comes_back_with_all_records_when_its_folder_is_renamed() -> None:
    store = Store()
    for number in range(5):
        store.log.append(batch(value=b"%d" % number), 0)
    store.directory.set_aside([("topic", 0)])
    store.directory.close()
    store.disk.rename(ROOT / strays(store)[0], store.folder)
    log = store.crash()
    assert log.failure is None
    assert values(log) == [b"%d" % number for number in range(5)]


def test_a_partition_made_after_one_was_set_aside_is_empty() -> None:
    store = Store()
    store.log.append(batch(3), 0)
    store.directory.checkpoint({("topic", 0): 3})
    store.directory.set_aside([("topic", 0)])
    store.directory.create("topic", 0, bytes(range(16)), store.config)
    log = store.crash()
    assert log.failure is None
    assert log.end_offset == 0
    assert len(strays(store)) == 1


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, RealDisk(), ManualClock())
    directory.open()
    directory.create("t" * 249, 99999, TOPIC_ID, LogConfig())
    directory.delete("t" * 249, 99999)
    directory.close()


def test_reads_in_progress_of_a_deleted_partition_succeed() -> None:
    store = Store()
    store.log.append(batch(3), 0)
    found = store.log.read(0, 1000, 3)
    store.directory.delete("topic", 0)
    store.clock.advance(60_000)
    store.directory.delete_pending()
    assert found is not None
    assert len(found.read()) == len(found)


def test_a_folder_that_cannot_be_renamed_is_not_reused_and_its_successor_is_not_removed() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk, segment_bytes=200)
    for _ in range(10):
        store.log.append(batch(1), 0)
    disk.fail("rename", name="topic-0")
    store.directory.delete("topic", 0)
    disk.heal()
    store.log = store.directory.create("topic", 0, bytes(15) + b"\1", store.config)
    store.log.append(batch(2), 0)
    store.clock.advance(10 * store.config.file_delete_delay_ms)
    store.directory.delete_pending()
    log = store.crash()
    assert log.failure is None
    assert offsets(log) == [0, 1]


def test_many_partitions_are_deleted_with_one_write_of_the_checkpoints() -> None:
    disk = FaultyDisk(MemoryDisk())
    directory = LogDirectory(ROOT, disk, ManualClock(T0))
    directory.open()
    for partition in range(20):
        log = directory.create("topic", partition, TOPIC_ID, LogConfig())
        log.append(batch(1), 0)
        log.flush()
    directory.checkpoint()
    before = disk.writes
    directory.delete_all([("topic", partition) for partition in range(20)])
    assert disk.writes - before == 2  # the recovery points, and their checksum
    assert directory.logs == {}


def test_a_deleted_folder_that_cannot_be_removed_does_not_keep_the_broker_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    store.log.append(batch(3), 0)
    deleted = ROOT / "old-0.0123456789abcdef0123456789abcdef-delete"
    store.disk.make_folder(deleted)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(store.disk, "remove_folder", refuse)
        assert offsets(store.crash()) == [0, 1, 2]
    store.directory.delete_pending()
    assert not store.disk.is_folder(deleted)
