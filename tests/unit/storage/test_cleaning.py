"""Compaction of one log: what stays of it, batch by batch."""

from __future__ import annotations

import random

import pytest

from ottla.protocol.compression import Codec
from ottla.protocol.records import decode_batch
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings
from ottla.storage.cleaning.job import CleaningJob, Outcomes, Progress, run
from ottla.storage.cleaning.key_map import KeyMap
from ottla.storage.cleaning.throttle import Throttle
from unit.storage.compacted import DAY, Compacted
from unit.storage.logs import T0, offsets, read_all, values


def test_the_latest_record_of_each_key_keeps_its_offset() -> None:
    store = Compacted()
    store.write((b"a", b"1"), (b"b", b"1"))
    store.write((b"a", b"2"), (b"c", b"1"))
    assert store.clean()
    assert [(r.offset, r.key, r.value) for r in read_all(store.log)] == [
        (1, b"b", b"1"),
        (2, b"a", b"2"),
        (3, b"c", b"1"),
    ]
    assert read_all(store.log)[0].timestamp == T0 + 1
    assert [offsets(store.log, start=n)[0] for n in range(4)] == [1, 1, 2, 3]


def test_a_batch_that_loses_no_records_is_copied_unchanged() -> None:
    store = Compacted()
    store.write((b"a", b"1"), (b"b", b"1"), codec=Codec.ZSTD)
    (before,) = store.files(".log").values()
    store.clean()
    assert next(iter(store.files(".log").values())) == before


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_loses_records_keeps_codec_offsets_and_producer(codec: Codec) -> None:
    store = Compacted()
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 40}
    store.write(
        (b"a", b"1" * 50), (b"b", b"2" * 50), (b"a", b"3" * 50), (b"c", b"4"), codec=codec, **producer
    )
    store.write((b"c", b"5"))
    store.clean()
    header = store.batches()[0]
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 3, 2)
    assert header.compression == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 40)
    assert header.last_sequence == 43
    assert header.max_timestamp == T0 + 2
    assert values(store.log) == [b"2" * 50, b"3" * 50, b"5"]


def test_records_without_a_key_are_removed() -> None:
    """They come from a time when the topic was not compacted."""
    store = Compacted()
    store.log.configure(store.log.config.__class__(cleanup_policy=("delete",)))
    store.write((None, b"old"), (b"a", b"1"))
    store.log.configure(store.config)
    store.clean()
    assert values(store.log) == [b"1"]


class TestTombstones:
    def test_tombstones_are_removed_after_delete_retention_ms(self) -> None:
        store = Compacted(delete_retention_ms=1000)
        store.write((b"a", b"1"), (b"a", None), (b"b", b"1"))
        store.clean()
        assert [(r.offset, r.value) for r in read_all(store.log)] == [(1, None), (2, b"1")]
        store.clock.advance(999)
        store.write((b"c", b"1"))
        store.clean()
        assert values(store.log) == [None, b"1", b"1"]
        store.clock.advance(1)
        store.write((b"c", b"2"))
        store.clean()
        assert values(store.log) == [b"1", b"2"]

    def test_the_delete_horizon_is_in_the_batch_header_and_timestamps_are_unchanged(self) -> None:
        store = Compacted(delete_retention_ms=1000)
        store.write((b"a", b"1"), (b"b", b"1"), (b"a", None))
        before = read_all(store.log)[1:]
        store.clean()
        header = store.batches()[0]
        assert header.attributes & 0x40
        assert header.base_timestamp == T0 + 1000
        assert read_all(store.log) == before
        assert header.max_timestamp == T0 + 2

    def test_a_delete_horizon_does_not_change_once_set(self) -> None:
        store = Compacted(delete_retention_ms=1000)
        store.write((b"a", None), (b"b", b"1"))
        store.clean()
        store.clock.advance(500)
        store.write((b"b", b"2"))
        store.clean()
        assert store.batches()[0].base_timestamp == T0 + 1000


class TestProducers:
    def test_the_header_of_the_last_batch_of_a_known_producer_is_kept(self) -> None:
        store = Compacted()
        producer = {"producer_id": 7, "producer_epoch": 0}
        store.write((b"a", b"1"), **producer, base_sequence=0)
        store.write((b"a", b"2"), (b"a", b"3"), **producer, base_sequence=1)
        store.write((b"a", b"4"))
        store.clean()
        assert [(h.base_offset, h.record_count) for h in store.batches()] == [(1, 0), (3, 1)]
        assert store.batches()[0].last_sequence == 2
        assert values(store.log) == [b"4"]

    def test_a_replay_of_the_compacted_log_restores_producer_sequences(self) -> None:
        store = Compacted()
        producer = {"producer_id": 7, "producer_epoch": 0}
        store.write((b"a", b"1"), **producer, base_sequence=0)
        store.write((b"a", b"2"))
        store.clean()
        for name in store.files(".snapshot"):
            store.disk.remove(store.folder / name)
        store.crash()
        store.write((b"a", b"3"), **producer, base_sequence=1)
        assert store.log.producers.get(7).last_sequence == 1  # type: ignore[union-attr]

    def test_no_empty_batch_is_kept_for_an_expired_producer(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
        store.write((b"a", b"2"))
        store.log.producers.expire(T0 + 10 * DAY, DAY)
        store.clean()
        assert [h.base_offset for h in store.batches()] == [1]


class TestSegments:
    def test_small_segments_are_merged_with_valid_indexes(self) -> None:
        store = Compacted(segment_bytes=2000, index_interval_bytes=100)
        for number in range(60):
            store.write((b"k%d" % (number % 30), b"v" * 60))
        assert len(store.files(".log")) == 4
        store.clean()
        bases = [int(name[:20]) for name, data in store.files(".log").items() if data]
        assert bases == [0, 45], "as many as there are bytes for, and the first begins where it did"
        assert [r.offset for r in read_all(store.log)] == list(range(30, 60))
        for start in range(60):
            assert offsets(store.log, start=start)[0] == max(start, 30)
        assert store.log.offset_for_timestamp(T0).offset == 30  # type: ignore[union-attr]

    def test_replaced_files_are_removed_after_the_delete_delay(self) -> None:
        store = Compacted(file_delete_delay_ms=1000)
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        store.clean()
        assert "00000000000000000000.log.replaced.deleted" in store.files()
        store.clock.advance(1000)
        store.directory.delete_pending()
        assert not store.files(".deleted")

    def test_a_slice_of_a_replaced_file_stays_readable(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        held = store.log.read(0, 1000, 2)
        store.clean()
        store.clock.advance(DAY)
        store.directory.delete_pending()
        data = held.read()  # type: ignore[union-attr]
        assert [r.value for r in decode_batch(memoryview(data), max_size=1000)] == [b"1"]

    def test_the_checkpoint_is_as_kafka_writes_it_and_survives_a_restart(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"), (b"a", b"2"))
        store.clean()
        assert store.disk.read(store.path / "cleaner-offset-checkpoint") == b"0\n1\ntopic 0 2\n"
        store.reopen()
        assert store.directory.cleaned_offsets == {("topic", 0): 2}

    def test_a_log_truncated_during_compaction_is_not_replaced(self) -> None:
        store = Compacted()

        def cut_meanwhile(job: CleaningJob, progress: Progress) -> Outcomes:
            for outcome in run(job, store.disk, progress=progress):
                store.log.truncate_to(1)
                store.write((b"b", b"new"))
                store.log.roll()
                yield outcome

        store.cleaner = Cleaner(store.directory, store.disk, store.clock, run_job=cut_meanwhile)
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        assert not store.clean()
        assert values(store.log) == [b"1", b"new"]
        assert not store.files(".swap") and not store.files(".cleaned")


class TestMemory:
    def test_more_keys_than_fit_into_the_map_take_several_passes(self) -> None:
        store = Compacted(segment_bytes=5000)
        store.cleaner.settings = CleanerSettings(memory=24 * 64)
        for number in range(400):
            store.write((b"k%d" % (number % 150), b"%d" % number))
        passes = 0
        while store.clean():
            passes += 1
            assert [r.value for r in read_all(store.log)][-150:] == [b"%d" % n for n in range(250, 400)]
        assert passes > 2
        assert offsets(store.log) == list(range(250, 400))

    def test_the_key_map_finds_every_key_that_was_added(self) -> None:
        keys = KeyMap(24 * 5000, 0.9, 1000)
        assert 4000 < keys.capacity <= 4500
        keys.extend(1000 + 2 * keys.capacity)
        rng = random.Random(3)
        latest: dict[bytes, int] = {}
        for offset in range(1000, 1000 + 2 * keys.capacity):
            key = rng.randbytes(3)
            if key in latest or keys.free_slots:
                latest[key] = offset
                keys.put(key, offset)
        assert keys.size == len(latest) == keys.capacity
        assert all(keys.latest(key) == offset for key, offset in latest.items())
        assert keys.latest(b"never") == -1
        last = max(latest.values())
        assert keys.count_latest(1000, last) == len(latest)
        assert {o for o in range(1000, last + 1) if keys.is_latest(o)} == set(latest.values())

    def test_a_batch_with_more_records_than_the_key_map_holds_is_reported(self) -> None:
        store = Compacted()
        store.cleaner.settings = CleanerSettings(memory=24 * 64)
        store.write(*[(b"k%d" % n, b"v") for n in range(100)])
        assert not store.clean()
        assert "log.cleaner.dedupe.buffer.size" in store.state.uncleanable


def test_the_throttle_sleeps_after_reading_too_fast() -> None:
    slept: list[float] = []
    throttle = Throttle(1000.0, monotonic=lambda: sum(slept), sleep=slept.append)
    for _ in range(10):
        throttle.spent(500)
    assert sum(slept) == pytest.approx(5.0)
