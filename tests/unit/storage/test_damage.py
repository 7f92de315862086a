"""Damage that no CRC shows: wrong lengths and base offsets, wrong index entries, missing segments."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.protocol.batches import crc_matches, headers
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client.fetched_batches import WrongOffsets, in_order
from ottla.storage.cleaning.cleaner import Cleaner, clean_now
from ottla.storage.log import Log
from unit.storage.logs import Store, batch, from_producer, offsets

FIRST = "00000000000000000000"


def filled(batches: int = 30, **config: Any) -> Store:
    """A partition with batches of two records in several segments."""
    defaults: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}
    store = Store(**defaults | config)
    for number in range(batches):
        store.log.append(from_producer(number * 2, 2, value=b"%04d" % number, key=b"%d" % number), 0)
    return store


def positions(store: Store, name: str) -> list[int]:
    """Where the batches of a segment begin."""
    return [position for position, _ in headers(store.files()[name])]


def flip(store: Store, name: str, position: int, mask: int = 1) -> None:
    file = store.disk.open(store.folder / name)
    file.write_at(position, bytes([file.read_at(position, 1)[0] ^ mask]))


def check_offline(log: Log, name: str) -> None:
    """Offline with the file named, at once or when the damaged part is read."""
    if log.failure is None:
        with pytest.raises(ApiError) as failure:
            offsets(log)
        assert failure.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is not None
    assert name in log.failure.message


def read_as_consumer(log: Log, max_bytes: int) -> list[int]:
    """The base offsets of all batches, as a consumer finds them that checks what it can."""
    offset, found = 0, []
    while (part := log.read(offset, max_bytes, log.end_offset)) is not None:
        data = part.read()
        for position, header in in_order(data, log.end_offset):
            if not crc_matches(data, position, header):
                raise WrongOffsets("checksum")
            found.append(header.base_offset)
            offset = header.next_offset
    return found


class TestBaseOffset:
    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("byte", range(8))
    @pytest.mark.parametrize("number", [0, 2, -1])
    def test_a_wrong_base_offset_takes_the_partition_offline(
        self, clean: bool, byte: int, number: int
    ) -> None:
        """Or it stands in the middle of a large answer, of which the broker looks at the first batch only;
        then the reader notices."""
        template = filled()
        name = list(template.files(".log"))[-1]
        at = positions(template, name)[number]
        if clean:
            template.directory.close()
        else:
            template.directory.abandon()
        flip(template, name, at + byte, 0x40)
        for max_bytes in (1, 200, 300, 10_000):
            store = Store(template.disk.copy(), segment_bytes=1000)
            assert clean or store.log.failure is not None
            with pytest.raises((ApiError, WrongOffsets)):
                read_as_consumer(store.log, max_bytes)
            assert store.log.failure is None or name in store.log.failure.message

    def test_a_wrong_base_offset_is_found_in_a_compacted_log_too(self) -> None:
        store = filled(cleanup_policy=("compact",))
        name = list(store.files(".log"))[-1]
        store.directory.abandon()
        flip(store, name, positions(store, name)[-1] + 6)
        check_offline(store.crash(), name)

    @pytest.mark.parametrize("byte", [0, 5, 6, 7])
    def test_a_base_offset_damaged_while_the_broker_runs_is_found_by_the_reader(self, byte: int) -> None:
        store = filled()
        store.reopen()
        second = list(store.files(".log"))[1]
        at = positions(store, second)[1]
        before = next(h.base_offset for p, h in headers(store.files()[second]) if p == at)
        flip(store, second, at + byte, 0x20)
        with pytest.raises(ApiError, match=second):
            store.log.read(before, 100, 60)

    def test_gaps_left_by_compaction_are_not_damage(self) -> None:
        store = Store(segment_bytes=600, index_interval_bytes=100, cleanup_policy=("compact",))
        for number in range(40):
            store.log.append(batch(1, key=b"%d" % (number % 7)), 0)
        cleaner = Cleaner(store.directory, store.disk, store.clock)
        assert clean_now(cleaner, store.log, store.log.end_offset)
        left = offsets(store.log)
        assert len(left) < 40
        starts: tuple[Callable[[], Log], ...] = (lambda: store.log, store.crash, store.reopen)
        for start in starts:
            log = start()
            for offset in range(40):
                assert offsets(log, start=offset) == [each for each in left if each >= offset]


class TestLength:
    @pytest.mark.parametrize("byte", range(8, 12))
    @pytest.mark.parametrize("mask", [0x01, 0x40, 0x80])
    @pytest.mark.parametrize("number", [0, 2, -1])
    def test_a_wrong_batch_length_never_gives_an_empty_read(self, byte: int, mask: int, number: int) -> None:
        store = filled()
        store.reopen()
        second = list(store.files(".log"))[1]
        at = positions(store, second)[number]
        damaged = next(h.base_offset for p, h in headers(store.files()[second]) if p == at)
        flip(store, second, at + byte, mask)
        for offset in range(damaged, damaged + 4):
            try:
                found = store.log.read(offset, 1000, 60)
            except ApiError as failure:
                assert second in failure.message
            else:
                assert found is not None

    def test_a_batch_length_beyond_the_limit_is_damage_and_not_an_empty_read(self) -> None:
        store = filled()
        store.reopen()
        first, following, *_ = positions(store, f"{FIRST}.log")
        store.damage(f"{FIRST}.log", 8, struct.pack(">i", following - first - 12 + 20))
        with pytest.raises(ApiError, match=f"{FIRST}.log"):
            store.log.read(0, 1000, 2)


class TestIndex:
    @pytest.mark.parametrize("clean", [True, False])
    def test_a_flipped_bit_hides_no_record(self, clean: bool) -> None:
        template = filled()
        template.log.flush()
        template.directory.checkpoint()
        if clean:
            template.directory.close()
        else:
            template.directory.abandon()
        disk = template.disk
        name = list(template.files(".index"))[1]
        for position in range(len(template.files()[name])):
            for mask in (0x01, 0x80):
                template.disk = disk.copy()
                flip(template, name, position, mask)
                store = Store(template.disk, segment_bytes=1000)
                assert offsets(store.log) == list(range(60))
                for offset in range(60):
                    assert offsets(store.log, start=offset, limit=offset + 3)[:1] == [offset]


class TestMissingSegments:
    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_a_missing_segment_takes_the_partition_offline(self, clean: bool, number: int) -> None:
        store = filled()
        store.directory.checkpoint()
        names = list(store.files(".log"))
        assert len(names) == 3
        if clean:
            store.directory.close()
        else:
            store.directory.abandon()
        store.disk.remove(store.folder / names[number])
        check_offline(store.crash(), "topic-0")
        assert store.reopen().failure is not None, "it must be found again"
        assert store.reopen().failure is not None

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_a_missing_segment_of_a_compacted_log_is_named_after_a_clean_stop(self, number: int) -> None:
        store = filled(cleanup_policy=("compact",))
        store.directory.close()
        name = list(store.files(".log"))[number]
        content = store.files()[name]
        store.disk.remove(store.folder / name)
        check_offline(store.crash(), name)
        check_offline(store.reopen(), name)
        store.directory.abandon()
        store.disk.replace(store.folder / name, content, sync=True)
        log = store.crash()
        assert log.failure is None, "the file was put back"
        assert offsets(log) == list(range(60))

    def test_a_segment_truncated_after_a_clean_stop_is_named(self) -> None:
        store = filled()
        second = list(store.files(".log"))[1]
        store.directory.close()
        store.cut(second, positions(store, second)[3])
        check_offline(store.crash(), second)

    def test_segments_deleted_by_retention_are_not_missed_after_a_kill(self) -> None:
        store = filled(retention_bytes=1500)
        store.directory.checkpoint()
        disks = [store.disk.copy()]
        store.log.apply_retention(60)
        assert store.log.log_start_offset > 0
        disks.append(store.disk.copy())
        store.clock.advance(10**6)
        store.directory.delete_pending()
        disks.append(store.disk.copy())
        for disk in disks:
            again = Store(disk, segment_bytes=1000)
            assert again.log.failure is None
            disks_later = [disk.copy()]
            again.directory.delete_pending()
            disks_later.append(disk.copy())
            for later in disks_later:
                log = Store(later, segment_bytes=1000).log
                assert log.failure is None
                assert offsets(log) == list(range(log.log_start_offset, 60))

    def test_a_damaged_list_of_segments_is_logged_and_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        store = filled()
        store.directory.close()
        path = store.path / "segments-checkpoint"
        data = bytearray(store.disk.read(path))
        data[-5] ^= 1
        store.disk.replace(path, bytes(data), sync=True)
        assert offsets(store.crash()) == list(range(60))
        assert "segments-checkpoint is damaged" in caplog.text


@pytest.mark.parametrize("entries", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_a_truncated_time_index_is_rebuilt(clean: bool, entries: int) -> None:
    store = Store(segment_bytes=1000, index_interval_bytes=150)
    for number in range(30):
        store.log.append(batch(2, timestamp=1_700_000_000_000 + number * 1000), 0)
    store.log.flush()
    store.directory.checkpoint()
    times = [segment.max_timestamp for segment in store.log.segments]
    if clean:
        store.directory.close()
    else:
        store.directory.abandon()
    store.cut(f"{FIRST}.timeindex", -12 * entries)
    assert [segment.max_timestamp for segment in store.crash().segments] == times


@pytest.mark.parametrize("clean", [True, False])
def test_wrong_digits_in_the_epochs_file_are_noticed(clean: bool) -> None:
    store = Store(segment_bytes=1000, index_interval_bytes=150)
    for number in range(30):
        store.log.append(batch(2), number // 10)
    store.log.flush()
    store.directory.checkpoint()
    if clean:
        store.directory.close()
    else:
        store.directory.abandon()
    path = store.folder / "leader-epoch-checkpoint"
    data = store.disk.read(path)
    entries = [(0, 0), (1, 20), (2, 40)]
    for position in range(len(data)):
        if not chr(data[position]).isdigit():
            continue
        disk = store.disk.copy()
        changed = bytearray(data)
        changed[position] ^= 1
        disk.replace(path, bytes(changed), sync=True)
        assert Store(disk).log.leader_epochs.entries == entries, bytes(changed)
