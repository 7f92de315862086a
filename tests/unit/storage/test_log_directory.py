"""A data folder with the logs of many partitions."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

from ottla.clock import ManualClock, SystemClock
from ottla.protocol.errors import ApiError
from ottla.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA
from ottla.storage.files import TEMPORARY_SUFFIX, RealDisk
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import DirectoryInUse, LogDirectory
from ottla.storage.producer_state import ProducerStates
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import ROOT, T0, TOPIC_ID, Store, batch, from_producer, offsets


def test_a_new_folder_is_made_and_empty() -> None:
    directory = LogDirectory(ROOT, MemoryDisk(), ManualClock())
    assert directory.open() == []
    assert directory.logs == {}


def test_partitions_are_found_again() -> None:
    disk = MemoryDisk()
    directory = LogDirectory(ROOT, disk, ManualClock(T0))
    directory.open()
    for topic, partition in (("a", 0), ("a", 11), ("b.c-1_d", 3)):
        log = directory.create(topic, partition, TOPIC_ID, LogConfig())
        log.append(batch(partition + 1), 0)
    directory.close({("a", 11): 7})
    again = LogDirectory(ROOT, disk, ManualClock(T0))
    assert len(again.open()) == 3
    assert {key: log.end_offset for key, log in again.logs.items()} == {
        ("a", 0): 1,
        ("a", 11): 12,
        ("b.c-1_d", 3): 4,
    }
    assert {log.topic_id for log in again.logs.values()} == {TOPIC_ID}
    assert again.high_watermarks == {("a", 11): 7}
    assert again.was_clean


@pytest.mark.parametrize("cut", ["truncate_to", "truncate_fully"])
def test_a_log_that_was_cut_below_its_high_watermark_opens_after_a_kill(cut: str) -> None:
    """A follower of an unclean leader cuts what it had taken for committed."""
    store = Store()
    for _ in range(9):
        store.log.append(batch(1), 0)
    store.directory.checkpoint_high_watermarks({("topic", 0): 8})
    getattr(store.log, cut)(5)
    log = store.crash()
    assert log.failure is None and log.end_offset == 5
    assert store.directory.high_watermarks == {("topic", 0): 5}


def test_high_watermarks_are_written_when_they_have_changed() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(3), 0)
    written: list[str] = []
    disk.before_write = lambda path: written.append(path.name)
    counts = []
    for mark in (1, 1, 2):
        store.directory.checkpoint_high_watermarks({("topic", 0): mark})
        counts.append(len(written))
    assert 0 < counts[0] == counts[1] < counts[2]


def test_foreign_files_and_folders_are_left_alone() -> None:
    store = Store()
    store.disk.replace(ROOT / "notes.txt", b"mine", sync=True)
    store.disk.make_folder(ROOT / "not a partition")
    store.disk.replace(ROOT / "file-0", b"mine", sync=True)
    store.reopen()
    assert {"notes.txt", "not a partition", "file-0"} <= set(store.disk.list(ROOT))
    assert list(store.directory.logs) == [("topic", 0)]


def test_creating_a_partition_twice_is_the_same_log_with_the_new_configuration() -> None:
    store = Store()
    config = LogConfig(segment_bytes=1234)
    assert store.directory.create("topic", 0, TOPIC_ID, config) is store.log
    assert store.log.config is config


def test_a_damaged_checkpoint_only_means_a_longer_scan() -> None:
    store = Store()
    store.log.append(batch(3), 0)
    store.log.flush()
    store.directory.checkpoint()
    store.disk.replace(ROOT / "recovery-point-offset-checkpoint", b"rubbish", sync=True)
    assert offsets(store.crash()) == [0, 1, 2]


def test_meta_properties_are_kept() -> None:
    store = Store()
    assert store.directory.read_meta() == {}
    store.directory.write_meta({"version": "1", "cluster.id": "abc", "node.id": "1"})
    store.reopen()
    assert store.directory.read_meta() == {"version": "1", "cluster.id": "abc", "node.id": "1"}


def test_two_brokers_cannot_use_one_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from pathlib import Path\n"
            "from ottla.clock import SystemClock\n"
            "from ottla.storage.files import RealDisk\n"
            "from ottla.storage.log_directory import LogDirectory\n"
            f"LogDirectory(Path({str(tmp_path)!r}), RealDisk(), SystemClock()).open()\n"
            "print('open', flush=True)\n"
            "sys.stdin.read()\n",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DirectoryInUse, match=rf"pid {holder.pid}\b"):
            LogDirectory(tmp_path, RealDisk(), SystemClock()).open()
    finally:
        holder.kill()
        holder.communicate()
    LogDirectory(tmp_path, RealDisk(), SystemClock()).open()


def test_partitions_open_at_once_after_a_clean_stop_and_hold_no_files_open(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, RealDisk(), SystemClock())
    directory.open()
    for number in range(300):
        directory.create("topic", number, TOPIC_ID, LogConfig()).append(batch(1), 0)
    directory.close()
    directory = LogDirectory(tmp_path, RealDisk(), SystemClock())
    started = time.process_time()
    reports = directory.open()
    seconds = time.process_time() - started
    assert len(reports) == 300
    assert not any(report.is_remarkable for report in reports)
    assert seconds < 0.3, f"opening took {seconds:.3f} s of the processor; a millisecond each is plenty"
    assert len(directory._opening._open_segments) == 0
    directory.abandon()


def test_more_partitions_than_allowed_open_files_can_be_used(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, RealDisk(), ManualClock(T0), max_open_files=20)
    directory.open()
    logs = [directory.create("topic", number, TOPIC_ID, LogConfig()) for number in range(100)]
    for _ in range(5):
        for log in logs:
            log.append(batch(2), 0)
            assert len(directory._opening._open_segments) <= 20
    for log in logs:
        assert offsets(log) == list(range(10))
    directory.close()


def test_a_partition_whose_folder_is_gone_starts_empty_and_survives_the_next_crash() -> None:
    store = Store()
    store.log.append(batch(30), 0)
    store.log.flush()
    store.directory.checkpoint()
    store.directory.abandon()
    store.disk.remove_folder(store.folder)
    store._open()
    store.log = store.directory.create("topic", 0, TOPIC_ID, LogConfig())
    store.log.append(batch(3), 0)
    log = store.crash()
    assert log.failure is None
    assert offsets(log) == [0, 1, 2]


def test_a_folder_without_its_topic_id_gets_it_from_the_topic_it_belongs_to() -> None:
    store = Store()
    store.log.append(batch(3), 0)
    store.directory.abandon()
    store.disk.remove(store.folder / PARTITION_METADATA)  # a crash came between the folder and this file
    store._open()
    assert store.directory.create("topic", 0, TOPIC_ID, LogConfig()).topic_id == TOPIC_ID
    log = store.crash()
    assert (log.topic_id, offsets(log)) == (TOPIC_ID, [0, 1, 2])


def test_a_checkpoint_may_be_written_while_partitions_are_made_and_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    store.log.append(batch(3), 0)
    made = iter(range(1, 100))

    def meanwhile(log: Log) -> int:
        monkeypatch.undo()
        for partition in made:
            store.directory.create("topic", partition, TOPIC_ID, LogConfig())
        return 0

    monkeypatch.setattr(Log, "log_start_offset", property(meanwhile), raising=False)
    store.directory.checkpoint()
    assert len(store.directory.logs) == 100


def test_of_two_concurrent_checkpoints_the_newer_offsets_stay() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(30), 0)
    store.log.flush()
    deleting = threading.Thread(target=store.directory.delete, args=("topic", 0))

    def delete_meanwhile(path: Path) -> None:
        disk.before_write = None
        deleting.start()
        deleting.join(0.2)  # long enough to overtake, if it were let

    disk.before_write = delete_meanwhile
    store.directory.checkpoint()
    deleting.join(10)
    store.log = store.directory.create("topic", 0, bytes(15) + b"\1", LogConfig())
    store.log.append(batch(3), 0)
    assert store.crash().failure is None


def test_a_topic_id_that_cannot_be_read_takes_one_partition_offline() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(3), 0)
    disk.fail("read", name=PARTITION_METADATA)
    log = store.crash()
    assert log.failure is not None and store.report.failure is not None
    disk.heal()
    store.directory.create("topic", 0, bytes(15) + b"\1", LogConfig())
    assert store.crash().topic_id == TOPIC_ID, "what could not be read was not written over"


def test_producers_are_not_forgotten_while_a_flush_writes_them_down() -> None:
    store = Store()
    store.log.append(from_producer(0), 0)
    expire, locked = store.log.producers.expire, []

    class Watched(ProducerStates):
        __slots__ = ()

        def expire(self, now_ms: int, expiration_ms: int) -> int:
            locked.append(store.log._lock.locked())
            return expire(now_ms, expiration_ms)

    store.log.producers = Watched("topic-0")
    assert store.log.expire_producers(T0 + 10, 1) == 1
    assert locked == [True]


@pytest.mark.parametrize("name", ["backup-2024", "to-delete", "old-0.bak-delete"])
def test_a_folder_that_is_not_a_log_is_left_alone_whatever_its_name(name: str) -> None:
    store = Store()
    store.directory.close()
    theirs = ROOT / name / "thesis.txt"
    store.disk.make_folder(theirs.parent)
    store.disk.replace(theirs, b"years of work", sync=True)
    store._open()
    assert list(store.directory.logs) == [("topic", 0)]
    assert store.disk.list(theirs.parent) == ["thesis.txt"]


def test_a_partition_is_not_made_in_a_folder_that_is_not_a_log() -> None:
    store = Store()
    theirs = ROOT / "backup-0" / "thesis.txt"
    store.disk.make_folder(theirs.parent)
    store.disk.replace(theirs, b"years of work", sync=True)
    with pytest.raises(FileExistsError):
        store.directory.create("backup", 0, TOPIC_ID, LogConfig())
    assert store.disk.read(theirs) == b"years of work"


@pytest.mark.parametrize(
    "names", [[], [f"{PARTITION_METADATA}.1{TEMPORARY_SUFFIX}"], [PARTITION_METADATA], [LEADER_EPOCHS]]
)
def test_a_folder_that_was_just_made_when_the_broker_died_is_a_partition(names: list[str]) -> None:
    store = Store()
    store.disk.make_folder(ROOT / "new-0")
    for name in names:
        store.disk.replace(ROOT / "new-0" / name, b"", sync=True)
    store.crash()
    log = store.directory.create("new", 0, TOPIC_ID, LogConfig())
    assert log.append(batch(1), 0).first_offset == 0


def test_an_unclean_shutdown_is_reported_until_it_was_handled() -> None:
    disk = MemoryDisk()

    def opened() -> LogDirectory:
        directory = LogDirectory(ROOT, disk, ManualClock(T0))
        directory.open(note_boot=False)
        return directory

    first = opened()
    first.note_boot()
    first.abandon()
    killed = opened()
    assert not killed.may_have_lost, "a killed process loses nothing"
    killed.abandon()
    disk.lose_power(Random(1))
    for _ in range(2):
        cut_off = opened()
        assert cut_off.may_have_lost
        cut_off.abandon()
    settled = opened()
    settled.note_boot()
    settled.abandon()
    again = opened()
    assert not again.may_have_lost
    again.close()
    disk.lose_power(Random(2))
    assert not opened().may_have_lost, "all was synced by the clean stop"


@pytest.mark.parametrize("how", ["flush", "truncate"])
def test_a_failed_sync_counts_as_a_loss_of_power_at_the_next_start(how: str) -> None:
    """What could not be synced may have left the page cache, too."""
    disk = FaultyDisk(MemoryDisk())

    def opened() -> LogDirectory:
        directory = LogDirectory(ROOT, disk, ManualClock(T0))
        directory.open(note_boot=False)
        return directory

    first = opened()
    first.note_boot()
    log = first.create("topic", 0, TOPIC_ID, LogConfig())
    log.append(batch(3), 0)
    disk.fail("sync", name=".log")
    with pytest.raises(ApiError, match="is offline"):
        log.flush() if how == "flush" else log.truncate_to(1)
    first.note_boot()  # as a broker does that is still starting
    first.abandon()
    disk.heal()
    for _ in range(2):
        again = opened()
        assert again.may_have_lost
        again.abandon()
    settled = opened()
    settled.note_boot()
    settled.abandon()
    assert not opened().may_have_lost
