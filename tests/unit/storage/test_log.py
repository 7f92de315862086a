"""Appending to a log and reading from it."""

from random import Random
from struct import Struct

import pytest
from crc32c import crc32c

from ottla.protocol.batches import CRC_START, HEADER_SIZE, headers, read_header
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.log import Log
from ottla.storage.log_config import DAY_MS, LogConfig
from unit.storage.logs import T0, Store, batch, from_producer, offsets, read_all, values

CRC = Struct(">I")
CRC_POSITION = 17


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def log(store: Store) -> Log:
    return store.log


def fill(log: Log, batches: int, records: int = 3, size: int = 20) -> None:
    for number in range(batches):
        log.append(batch(records, value=b"%05d" % number + b"." * size, timestamp=T0 + number), 0)


class TestAppending:
    def test_an_append_returns_its_offsets(self, log: Log) -> None:
        log.append(batch(3), 0)
        info = log.append(batch(2), 0)
        assert (info.first_offset, info.last_offset, info.append_time_ms, info.duplicate) == (3, 4, -1, False)
        assert log.end_offset == 5

    def test_the_bytes_of_the_producer_are_written_unchanged(self, store: Store) -> None:
        data = batch(3, codec=Codec.ZSTD)
        store.log.append(data, 4)
        assert store.files(".log") == {"00000000000000000000.log": bytes(data)}
        assert read_header(data).leader_epoch == 4

    def test_batches_of_one_append_are_contiguous(self, store: Store) -> None:
        """Of different sizes: the last one's size is not the size of them all."""
        for base in (0, 6):
            parts = [batch(3, value=b"long" * 20), batch(2, value=b"longer" * 9), batch(1, value=b"s")]
            store.log.append(memoryview(bytearray(b"".join(parts))), 0)
            assert offsets(store.log) == list(range(base + 6))
        store.crash()
        assert offsets(store.log) == list(range(12))

    def test_a_retry_writes_nothing_and_is_answered_with_the_first_offsets(self, log: Log) -> None:
        log.append(batch(5), 0)
        log.append(from_producer(0, 3), 0)
        size = log.size
        info = log.append(from_producer(0, 3), 0)
        assert (info.first_offset, info.last_offset, info.duplicate) == (5, 7, True)
        assert (log.size, log.end_offset) == (size, 8)

    def test_a_refused_append_leaves_no_trace(self, log: Log) -> None:
        log.append(from_producer(0, 3), 0)
        size = log.size
        for wrong in (from_producer(9), batch(1)[:30]):
            with pytest.raises(ApiError):
                log.append(wrong, 0)
        assert (log.size, log.end_offset) == (size, 3)
        assert log.append(from_producer(3), 0).first_offset == 3

    def test_log_append_time_is_stamped_by_the_log(self, store: Store) -> None:
        store.log.configure(LogConfig(message_timestamp_type="LogAppendTime"))
        store.clock.advance(500)
        info = store.log.append(batch(2), 0)
        assert info.append_time_ms == T0 + 500
        assert {record.timestamp for record in read_all(store.log)} == {T0 + 500}

    def test_a_retry_on_a_topic_with_log_append_time_is_answered_with_the_first_time(
        self, store: Store
    ) -> None:
        store.log.configure(LogConfig(message_timestamp_type="LogAppendTime"))
        store.log.append(from_producer(0), 0)
        store.clock.advance(500)
        assert store.log.append(from_producer(0), 0).append_time_ms == T0

    def test_an_append_larger_than_a_segment_is_refused(self, log: Log) -> None:
        log.configure(LogConfig(segment_bytes=100))
        with pytest.raises(ApiError) as refusal:
            log.append(batch(1, value=b"x" * 100), 0)
        assert refusal.value.code == ErrorCode.RECORD_LIST_TOO_LARGE

    def test_a_configuration_is_in_force_from_the_next_append_on(self, log: Log) -> None:
        log.append(batch(1), 0)
        log.configure(LogConfig(max_message_bytes=10))
        with pytest.raises(ApiError) as refusal:
            log.append(batch(1), 0)
        assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE

    def test_leader_epochs_are_recorded(self, log: Log) -> None:
        for epoch in (0, 0, 2, 5):
            log.append(batch(2), epoch)
        assert log.leader_epochs.entries == [(0, 0), (2, 4), (5, 6)]

    def test_a_new_leader_epoch_is_recorded_before_the_first_record(self, log: Log) -> None:
        log.append(batch(2), 0)
        log.begin_epoch(3)
        assert log.leader_epochs.end_offset_for(0, log.end_offset) == (0, 2)


class TestReplication:
    def test_a_follower_writes_what_the_leader_sent(self) -> None:
        leader, follower = Store(), Store()
        for epoch in (0, 0, 3):
            leader.log.append(
                from_producer(epoch and 2, 2, epoch=epoch), epoch
            ) if epoch else leader.log.append(batch(2), 0)
        data = bytearray(leader.files(".log")["00000000000000000000.log"])
        info = follower.log.append_replicated(memoryview(data))
        assert (info.first_offset, info.last_offset) == (0, leader.log.end_offset - 1)
        assert follower.files(".log") == leader.files(".log")
        assert follower.log.leader_epochs.entries == leader.log.leader_epochs.entries

    def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(self) -> None:
        leader, follower = Store(), Store()
        leader.log.append(batch(2), 0)
        leader.log.append(batch(2), 0)
        data = bytearray(leader.files(".log")["00000000000000000000.log"])
        assert follower.log.append_replicated(memoryview(data)[:-5]).last_offset == 1
        assert follower.log.end_offset == 2

    def test_a_follower_refuses_damaged_and_old_batches(self, log: Log) -> None:
        log.append(batch(2), 0)
        with pytest.raises(ApiError) as refusal:
            log.append_replicated(batch(2))
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        damaged = batch(2, base_offset=0)
        damaged[-1] ^= 1
        with pytest.raises(ApiError) as refusal:
            log.append_replicated(damaged)
        assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE


class TestReading:
    def test_every_offset_is_found(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_bytes=2000, index_interval_bytes=200))
        fill(store.log, 100)
        assert len(store.log.segments) > 3
        for offset in range(store.log.end_offset):
            found = store.log.read(offset, 1, store.log.end_offset)
            assert found is not None
            header = read_header(found.read())
            assert header.base_offset <= offset <= header.last_offset

    def test_a_slice_begins_with_the_batch_that_holds_the_offset(self, log: Log) -> None:
        fill(log, 3)
        found = log.read(4, 10_000, log.end_offset)
        assert found is not None
        assert [header.base_offset for _, header in headers(found.read())] == [3, 6]

    def test_max_bytes_may_cut_the_last_batch_but_never_the_first(self, log: Log) -> None:
        fill(log, 3)
        size = log.size // 3
        for max_bytes, length in ((1, size), (size, size), (size + 7, size + 7), (10_000, 3 * size)):
            found = log.read(0, max_bytes, log.end_offset)
            assert found is not None
            assert len(found) == length

    def test_without_at_least_one_batch_an_oversized_batch_is_not_returned(self, log: Log) -> None:
        fill(log, 1)
        assert log.read(0, log.size - 1, log.end_offset, at_least_one=False) is None
        assert log.read(0, log.size, log.end_offset, at_least_one=False) is not None

    def test_a_read_ends_at_the_last_whole_batch_below_the_offset_limit(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_bytes=3000, index_interval_bytes=300))
        fill(store.log, 200)
        random = Random(1)
        for _ in range(300):
            offset = random.randrange(store.log.end_offset)
            limit = random.randrange(store.log.end_offset + 1)
            found = store.log.read(offset, 1_000_000, limit)
            seen = [header for _, header in headers(found.read())] if found else []
            assert all(header.last_offset < limit for header in seen)
            if seen:
                assert seen[0].base_offset <= offset
                # Nothing is held back but what the limit or the segment's end holds back.
                segment_ends = [info.base_offset for info in store.log.segments] + [store.log.end_offset]
                assert seen[-1].next_offset == limit // 3 * 3 or seen[-1].next_offset in segment_ends
            else:
                assert offset >= limit // 3 * 3

    def test_nothing_is_read_at_the_end_or_at_the_limit(self, log: Log) -> None:
        fill(log, 3)
        assert log.read(9, 1000, 9) is None
        assert log.read(6, 1000, 6) is None
        assert log.read(8, 1000, 3) is None

    @pytest.mark.parametrize("offset", [-1, 10])
    def test_an_offset_outside_of_the_log_is_out_of_range(self, log: Log, offset: int) -> None:
        fill(log, 3)
        with pytest.raises(ApiError) as refusal:
            log.read(offset, 1000, 9)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_gaps_that_compaction_leaves_are_skipped(self, store: Store) -> None:
        store.log.may_have_gaps = True
        for base in (0, 10, 500, 501):
            store.log.append_replicated(batch(1, base_offset=0) if base == 0 else moved(batch(1), base))
        store.log.roll()
        store.log.append_replicated(moved(batch(2), 1000))
        assert offsets(store.log) == [0, 10, 500, 501, 1000, 1001]
        assert offsets(store.log, start=11) == [500, 501, 1000, 1001]
        assert offsets(store.log, start=700) == [1000, 1001]

    def test_a_slice_survives_the_deletion_of_its_segment(self, store: Store) -> None:
        fill(store.log, 2)
        found = store.log.read(0, 1000, 6)
        store.log.roll()
        store.log.delete_records_before(6)
        store.log.apply_retention(6)
        store.clock.advance(10**6)
        store.directory.delete_pending()
        assert found is not None
        assert len(found.read()) == len(found)


def moved(data: memoryview, base_offset: int) -> memoryview:
    data[:8] = base_offset.to_bytes(8, "big")
    return data


class TestRolling:
    def test_a_segment_never_exceeds_its_size(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_bytes=1000))
        fill(store.log, 50)
        assert all(info.size <= 1000 for info in store.log.segments)
        assert len(offsets(store.log)) == 150

    def test_a_segment_is_named_after_its_first_offset_and_comes_with_its_files(self, store: Store) -> None:
        fill(store.log, 2)
        store.log.roll()
        fill(store.log, 1)
        assert set(store.files()) == {
            "00000000000000000000.log",
            "00000000000000000000.index",
            "00000000000000000000.timeindex",
            "00000000000000000006.log",
            "00000000000000000006.snapshot",
            "leader-epoch-checkpoint",
            "partition.metadata",
        }

    def test_an_empty_segment_is_not_rolled(self, log: Log) -> None:
        log.roll()
        log.roll()
        assert len(log.segments) == 1

    def test_a_segment_is_rolled_when_its_records_span_segment_ms(self, log: Log) -> None:
        log.configure(LogConfig(segment_ms=1000))
        for timestamp in (0, 900, 1000, 1001, 1500):
            log.append(batch(1, timestamp=T0 + timestamp), 0)
        assert [info.base_offset for info in log.segments] == [0, 3]

    def test_records_weeks_apart_do_not_roll_a_segment_per_batch(self, store: Store) -> None:
        for week in range(200):
            store.log.append(batch(1, timestamp=T0 - (200 - week) * 8 * DAY_MS), 0)
            store.clock.advance(100)
        assert len(store.log.segments) == 2

    def test_a_segment_of_some_size_is_rolled_by_the_times_of_its_records_at_once(self, store: Store) -> None:
        for week in range(4):
            store.log.append(batch(1, timestamp=T0 - (4 - week) * 8 * DAY_MS, value=bytes(600_000)), 0)
        assert [info.base_offset for info in store.log.segments] == [0, 2]

    def test_without_timestamps_the_age_of_the_segment_counts(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_ms=1000))
        for _ in range(3):
            store.log.append(batch(1, timestamp=-1), 0)
            store.clock.advance(600)
        assert [info.base_offset for info in store.log.segments] == [0, 2]

    def test_a_full_index_rolls_the_segment(self, log: Log) -> None:
        log.configure(LogConfig(index_interval_bytes=0, segment_index_bytes=80))
        fill(log, 30)
        assert len(log.segments) > 2

    def test_jitter_shortens_segment_ms_the_same_way_each_time(self) -> None:
        def first_roll() -> int:
            log = Store(segment_ms=1000, segment_jitter_ms=900).log
            for timestamp in range(0, 1100, 10):
                log.append(batch(1, timestamp=T0 + timestamp), 0)
                if len(log.segments) == 2:
                    return timestamp
            raise AssertionError("never rolled")

        assert first_roll() == first_roll() <= 1010


class TestTime:
    def test_the_first_record_at_or_after_a_time_is_found(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_bytes=1000, index_interval_bytes=100))
        for number in range(60):
            store.log.append(batch(3, timestamp=T0 + number * 30, step=10), number // 20)
        for number in range(180):
            found = store.log.offset_for_timestamp(T0 + number * 10 - 5)
            assert found == (number, T0 + number * 10, number // 60)
        assert store.log.offset_for_timestamp(T0 + 1791) is None

    def test_timestamps_out_of_order_are_found(self, log: Log) -> None:
        log.configure(LogConfig(index_interval_bytes=0))
        times = [50, 10, 70, 20, 70, 90, 5]
        for time in times:
            log.append(batch(1, timestamp=T0 + time), 0)
        for wanted in range(100):
            first = next((i for i, time in enumerate(times) if time >= wanted), None)
            found = log.offset_for_timestamp(T0 + wanted)
            assert (found.offset if found else None) == first

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
    def test_an_undecodable_batch_hides_only_its_own_records_in_a_time_search(
        self, log: Log, codec: Codec
    ) -> None:
        log.append(batch(2), 0)
        broken = bytearray(batch(2, timestamp=T0 + 10, step=5, codec=codec))
        broken[HEADER_SIZE:] = b"\xab" * (len(broken) - HEADER_SIZE)
        CRC.pack_into(broken, CRC_POSITION, crc32c(broken[CRC_START:]))
        log.append(memoryview(broken), 0)
        assert log.max_timestamp() == (2, T0 + 15, 0)
        log.append(batch(2, timestamp=T0 + 20), 0)
        assert log.offset_for_timestamp(T0 + 1) == (1, T0 + 1, 0)
        assert log.offset_for_timestamp(T0 + 12) == (2, T0 + 15, 0)
        assert log.offset_for_timestamp(T0 + 20) == (4, T0 + 20, 0)

    def test_records_before_the_log_start_are_not_found(self, log: Log) -> None:
        log.append(batch(10), 0)
        log.delete_records_before(4)
        found = log.offset_for_timestamp(T0)
        assert found is not None
        assert found.offset == 4

    def test_the_first_record_with_the_largest_timestamp_is_found(self, store: Store) -> None:
        assert store.log.max_timestamp() is None
        store.log.append(batch(3, timestamp=T0, step=5), 0)
        store.log.append(batch(3, timestamp=T0 - 100, step=50), 1)
        store.log.roll()
        store.log.append(batch(3, timestamp=T0 - 50), 1)
        assert store.log.max_timestamp() == (2, T0 + 10, 0)

    def test_with_log_append_time_the_first_record_of_the_newest_batch_counts(self, store: Store) -> None:
        store.log.configure(LogConfig(message_timestamp_type="LogAppendTime"))
        store.log.append(batch(3), 0)
        store.clock.advance(10)
        store.log.append(batch(3), 0)
        assert store.log.max_timestamp() == (3, T0 + 10, 0)


class TestRemoving:
    def test_deleting_records_moves_the_start(self, log: Log) -> None:
        fill(log, 4)
        log.delete_records_before(5)
        assert log.log_start_offset == 5
        assert offsets(log) == list(range(5, 12))
        with pytest.raises(ApiError) as refusal:
            log.read(4, 100, 12)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_the_start_never_moves_back_or_behind_the_end(self, log: Log) -> None:
        fill(log, 4)
        log.delete_records_before(5)
        log.delete_records_before(3)
        assert log.log_start_offset == 5
        with pytest.raises(ApiError) as refusal:
            log.delete_records_before(13)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_segments_before_the_start_are_deleted_with_the_next_retention(self, store: Store) -> None:
        for _ in range(3):
            fill(store.log, 1)
            store.log.roll()
        store.log.delete_records_before(5)
        deleted = store.log.apply_retention(9)
        assert [info.base_offset for info in deleted] == [0]
        assert offsets(store.log) == [5, 6, 7, 8]

    def test_deleted_files_are_renamed_at_once_and_removed_after_the_delay(self, store: Store) -> None:
        fill(store.log, 1)
        store.log.roll()
        store.log.delete_records_before(3)
        store.log.apply_retention(3)
        assert set(store.files(".deleted")) == {
            "00000000000000000000.index.deleted",
            "00000000000000000000.log.deleted",
            "00000000000000000000.timeindex.deleted",
        }
        store.clock.advance(59_999)
        assert store.directory.delete_pending() == 0
        store.clock.advance(1)
        assert store.directory.delete_pending() == 3
        assert store.files(".deleted") == {}

    def test_retention_by_time_can_empty_the_log(self, store: Store) -> None:
        store.log.configure(LogConfig(retention_ms=1000))
        fill(store.log, 3)
        store.clock.advance(5000)
        assert len(store.log.apply_retention(9)) == 1
        assert (store.log.log_start_offset, store.log.end_offset, store.log.size) == (9, 9, 0)
        assert store.log.append(batch(1), 0).first_offset == 9

    def test_retention_by_size_keeps_the_newest(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_bytes=500, retention_bytes=1500))
        fill(store.log, 40)
        store.log.apply_retention(store.log.end_offset)
        assert 1500 <= store.log.size < 2000
        assert values(store.log)[-1] == b"00039" + b"." * 20

    def test_truncation_cuts_at_a_batch(self, store: Store) -> None:
        store.log.configure(LogConfig(segment_bytes=1000, index_interval_bytes=100))
        fill(store.log, 30)
        before = values(store.log)
        assert store.log.truncate_to(50)
        assert store.log.end_offset == 48
        assert values(store.log) == before[:48]
        assert store.log.append(batch(1, value=b"new"), 1).first_offset == 48
        assert values(store.log)[-1] == b"new"
        assert store.crash().end_offset == 49

    def test_truncation_forgets_producers_and_epochs_that_are_cut_off(self, log: Log) -> None:
        log.append(from_producer(0, 2), 0)
        log.append(from_producer(2, 2), 1)
        log.append(from_producer(0, producer=8), 2)
        log.truncate_to(2)
        assert log.leader_epochs.entries == [(0, 0)]
        assert log.producers.get(8) is None
        assert log.append(from_producer(2, 2), 3).first_offset == 2

    def test_truncation_behind_the_end_does_nothing(self, log: Log) -> None:
        fill(log, 2)
        assert not log.truncate_to(6)
        assert log.end_offset == 6

    def test_a_full_truncation_starts_at_the_given_offset(self, store: Store) -> None:
        fill(store.log, 5)
        store.log.flush()
        store.log.truncate_fully(100)
        assert (store.log.log_start_offset, store.log.end_offset, store.log.size) == (100, 100, 0)
        assert store.log.append(batch(1), 0).first_offset == 100
        assert store.crash().end_offset == 101


class TestStableOffset:
    def test_the_last_stable_offset_is_the_high_watermark_without_transactions(self, log: Log) -> None:
        fill(log, 2)
        assert log.last_stable_offset(4) == 4

    def test_the_last_stable_offset_stops_at_an_open_transaction(self, log: Log) -> None:
        fill(log, 1)
        log.append(from_producer(0, transactional=True), 0)
        fill(log, 1)
        assert log.last_stable_offset(7) == 3
        assert log.last_stable_offset(2) == 2


def test_truncating_a_batch_in_which_the_log_starts_leaves_an_empty_log_at_its_start() -> None:
    store = Store()
    store.log.append(batch(2), 0)
    store.log.append(batch(4), 0)
    store.log.delete_records_before(4)
    assert store.log.truncate_to(5)
    assert (store.log.log_start_offset, store.log.end_offset) == (4, 4)
    assert read_all(store.log) == []
    for open_again in (store.reopen, store.crash):
        log = open_again()
        assert (log.log_start_offset, log.end_offset) == (4, 4)
    assert store.log.append(batch(1), 0).first_offset == 4
