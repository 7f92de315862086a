"""What a partition remembers of its producers."""

import random
import time
from struct import pack

import pytest

from ottla.protocol.batches import BatchHeader, read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.producer_snapshot import CorruptSnapshot
from ottla.storage.producer_state import ControlRecord, ProducerStates, fair_limit
from unit.storage.logs import T0, batch, from_producer

COMMIT, ABORT = ControlRecord(True, 3), ControlRecord(False, 3)


def marker_of(producer: int) -> memoryview:
    return from_producer(-1, producer=producer, transactional=True, control=True)


class Partition:
    """Producers and a pretended log."""

    def __init__(self) -> None:
        self.producers = ProducerStates("t-0")
        self.end = 0

    def write(
        self, data: memoryview, now: int = T0, control: ControlRecord | None = None
    ) -> tuple[int, int] | None:
        """Check and note a batch; the offsets of the first time when it is a retry."""
        header = read_header(data)
        known = self.producers.check([(0, self.end, header)], from_client=control is None)
        if known is not None:
            return known.first_offset, known.last_offset
        self.note(header, now, control)
        return None

    def note(self, header: BatchHeader, now: int = T0, control: ControlRecord | None = None) -> None:
        self.producers.update(header, self.end, now, control)
        self.end += header.last_offset_delta + 1

    def refused(self, data: memoryview) -> ErrorCode:
        with pytest.raises(ApiError) as refusal:
            self.write(data)
        return refusal.value.code


def test_batches_in_sequence_are_accepted() -> None:
    partition = Partition()
    for sequence in (0, 3, 6):
        assert partition.write(from_producer(sequence, 3)) is None
    state = partition.producers.get(7)
    assert state is not None
    assert (state.last_sequence, state.last_offset, state.epoch) == (8, 8, 0)


def test_a_retry_of_one_of_the_last_five_batches_gets_its_first_offsets() -> None:
    partition = Partition()
    for number in range(6):
        partition.write(from_producer(number * 2, 2))
    for number in range(1, 6):
        assert partition.write(from_producer(number * 2, 2)) == (number * 2, number * 2 + 1)


def test_a_retry_of_an_older_batch_is_out_of_order() -> None:
    partition = Partition()
    for number in range(6):
        partition.write(from_producer(number))
    assert partition.refused(from_producer(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_in_the_sequence_is_out_of_order() -> None:
    partition = Partition()
    partition.write(from_producer(0, 3))
    assert partition.refused(from_producer(4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.write(from_producer(3)) is None


def test_a_batch_with_the_first_but_not_the_last_sequence_of_a_known_one_is_no_retry() -> None:
    partition = Partition()
    partition.write(from_producer(0, 3))
    assert partition.refused(from_producer(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    partition = Partition()
    assert partition.write(from_producer(41)) is None
    assert partition.write(from_producer(42)) is None


def test_sequences_wrap_to_zero() -> None:
    partition = Partition()
    partition.write(from_producer(2**31 - 2, 2))
    assert partition.write(from_producer(0)) is None
    assert partition.refused(from_producer(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_across_the_wrap_is_recognised_as_a_retry() -> None:
    partition = Partition()
    partition.write(from_producer(2**31 - 2, 5))
    assert partition.write(from_producer(3)) is None
    assert partition.write(from_producer(2**31 - 2, 5)) == (0, 4)


def test_an_older_epoch_is_fenced() -> None:
    partition = Partition()
    partition.write(from_producer(0, epoch=2))
    assert partition.refused(from_producer(1, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_begins_with_sequence_zero() -> None:
    partition = Partition()
    partition.write(from_producer(0, 5))
    assert partition.refused(from_producer(5, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.write(from_producer(0, epoch=1)) is None
    assert partition.refused(from_producer(5)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_several_batches_of_one_append_must_follow_each_other() -> None:
    producers = ProducerStates("t-0")
    first, second, wrong = (read_header(from_producer(sequence, 2)) for sequence in (0, 2, 5))
    assert producers.check([(0, 0, first), (9, 2, second)], from_client=True) is None
    with pytest.raises(ApiError) as refusal:
        producers.check([(0, 0, first), (9, 2, wrong)], from_client=True)
    assert refusal.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_are_checked_per_producer() -> None:
    partition = Partition()
    partition.write(from_producer(0, producer=1))
    partition.write(from_producer(0, producer=2))
    assert partition.write(from_producer(1, producer=1)) is None
    assert len(partition.producers) == 2


def test_batches_without_a_producer_are_not_remembered() -> None:
    partition = Partition()
    header = read_header(batch())
    assert partition.producers.check([(0, 0, header)], from_client=True) is None


def test_idle_producers_are_forgotten_by_our_clock_not_by_their_timestamps() -> None:
    partition = Partition()
    partition.write(from_producer(0, producer=1, timestamp=5), now=T0)
    partition.write(from_producer(0, producer=2, timestamp=5), now=T0 + 500)
    assert partition.producers.expire(T0 + 999, 1000) == 0
    assert partition.producers.expire(T0 + 1000, 1000) == 1
    assert partition.producers.get(1) is None


def test_an_open_transaction_holds_back_the_stable_offset_until_its_marker_is_replicated() -> None:
    partition = Partition()
    partition.write(batch())
    partition.write(from_producer(0, transactional=True))
    partition.write(from_producer(1, transactional=True))
    assert partition.producers.first_unstable_offset(3) == 1
    marker = from_producer(-1, transactional=True, control=True)
    partition.write(marker, control=COMMIT)
    assert partition.producers.first_unstable_offset(3) == 1
    assert partition.producers.first_unstable_offset(4) is None


@pytest.mark.parametrize("end", [COMMIT, ABORT])
def test_a_batch_that_repeats_one_of_an_ended_transaction_is_no_retry(end: ControlRecord) -> None:
    partition = Partition()
    partition.write(from_producer(0, 2, transactional=True))
    assert partition.write(from_producer(0, 2, transactional=True)) == (0, 1)
    partition.write(from_producer(-1, transactional=True, control=True), control=end)
    again = from_producer(0, 2, transactional=True)
    assert partition.refused(again) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.write(from_producer(2, 2, transactional=True))
    assert partition.refused(again) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.write(from_producer(2, 2, transactional=True)) == (3, 4)


def test_the_oldest_open_transaction_counts() -> None:
    partition = Partition()
    partition.write(from_producer(0, producer=1, transactional=True))
    partition.write(from_producer(0, producer=2, transactional=True))
    partition.write(from_producer(-1, producer=1, transactional=True, control=True), control=ABORT)
    assert partition.producers.first_unstable_offset(3) == 1


def test_a_coordinator_epoch_that_was_forged_counts_for_one_producer_until_it_is_forgotten() -> None:
    partition = Partition()
    partition.write(marker_of(7), control=ControlRecord(False, 2**31 - 1))
    with pytest.raises(ApiError) as refusal:
        partition.producers.check_marker(7, 0, 5, 2)
    assert refusal.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    partition.producers.check_marker(8, 0, 5, 2)
    partition.producers.expire(T0 + 1000, 1000)
    partition.producers.check_marker(7, 0, 5, 2)


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    partition = Partition()
    partition.write(from_producer(0, transactional=True))
    assert partition.producers.expire(T0 + 10**9, 1000) == 0
    assert partition.refused(from_producer(1)) == ErrorCode.INVALID_TXN_STATE


def test_a_snapshot_holds_all_that_checks_need() -> None:
    partition = Partition()
    for number in range(7):
        partition.write(from_producer(number * 2, 2, producer=1))
    partition.write(from_producer(0, producer=2, epoch=4, transactional=True))
    again = Partition()
    again.end = partition.end
    again.producers.load(partition.producers.encode(), T0)
    for number in range(2, 7):
        assert again.write(from_producer(number * 2, 2, producer=1)) == (number * 2, number * 2 + 1)
    assert again.refused(from_producer(2, 2, producer=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.write(from_producer(14, producer=1)) is None
    assert again.refused(from_producer(1, producer=2, epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert again.producers.first_unstable_offset(100) == 14


def test_a_snapshot_of_one_batch_each_is_byte_for_byte_kafkas() -> None:
    partition = Partition()
    partition.write(from_producer(5, 3, producer=9, epoch=2, timestamp=1000, step=0))
    body = pack(">i", 1) + pack(">qhiqiqiq", 9, 2, 7, 2, 2, 1000, -1, -1)
    assert partition.producers.encode()[6:] == body
    assert partition.producers.encode()[:2] == b"\0\1"


def test_a_damaged_snapshot_is_refused_and_changes_nothing() -> None:
    partition = Partition()
    partition.write(from_producer(0))
    data = bytearray(partition.producers.encode())
    for damaged in (b"", data[:5], data[:-1], bytes([0, 2]) + data[2:], data[:20] + b"\xee" + data[21:]):
        with pytest.raises(CorruptSnapshot):
            partition.producers.load(bytes(damaged), T0)
    assert len(partition.producers) == 1


def test_beyond_the_limit_the_longest_idle_producers_are_forgotten() -> None:
    partition = Partition()
    partition.producers.limit = 100
    for producer in range(1000):
        partition.write(from_producer(0, producer=producer), now=T0 + producer)
        partition.write(from_producer(producer, producer=5000), now=T0 + producer)
        assert len(partition.producers) <= 100
    assert partition.producers.get(5000) is not None
    assert partition.producers.get(999) is not None
    assert partition.producers.get(0) is None
    assert partition.write(from_producer(77, producer=0)) is None, "a forgotten producer can go on"


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    partition = Partition()
    partition.producers.limit = 10
    partition.write(from_producer(0, producer=1, transactional=True))
    for producer in range(2, 50):
        partition.write(from_producer(0, producer=producer), now=T0 + producer)
    assert partition.producers.get(1) is not None
    assert partition.producers.first_unstable_offset(1000) == 0


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ([], 10, None),
        ([5, 5], 10, None),
        ([1, 2, 100], 13, 10),
        ([100, 1, 100, 2], 23, 10),
        ([4, 4, 4], 6, 2),
        ([1, 1, 1], 2, 0),
    ],
)
def test_the_producer_limit_is_shared_fairly_between_partitions(
    counts: list[int], most: int, expected: int | None
) -> None:
    limit = fair_limit(counts, most)
    assert limit == expected
    if limit is not None:
        assert sum(min(count, limit) for count in counts) <= most


def test_the_first_unstable_offset_is_the_same_however_transactions_overlap() -> None:
    rng = random.Random(11)
    partition = Partition()
    open_since: dict[int, int] = {}
    ended: list[tuple[int, int]] = []  # first offset, offset of the marker
    for _ in range(600):
        producer = rng.randrange(30)
        if producer in open_since:
            ended.append((open_since.pop(producer), partition.end))
            partition.write(marker_of(producer), control=rng.choice([COMMIT, ABORT]))
        else:
            open_since[producer] = partition.end
            partition.note(read_header(from_producer(0, producer=producer, transactional=True)))
        high_watermark = max(partition.end - rng.randrange(60), 0)
        unstable = [first for first, marker in ended if marker >= high_watermark]
        ended = [each for each in ended if each[1] >= high_watermark]
        expected = min([*unstable, *open_since.values()], default=None)
        assert partition.producers.first_unstable_offset(high_watermark) == expected


def test_ending_many_open_transactions_takes_time_for_each_but_not_for_all() -> None:
    """Each was found by passing over all those that had been ended before it."""
    producers = ProducerStates("t-0", limit=100_000)
    header = read_header(from_producer(0, producer=0, transactional=True))
    marker = read_header(marker_of(0))
    count = 40_000
    for number in range(count):
        producers.update(header._replace(producer_id=number), number, T0)
    began = time.process_time()
    for number in range(count):
        producers.update(marker._replace(producer_id=number), count + number, T0, ABORT)
        assert producers.first_unstable_offset(0) == 0
    assert time.process_time() - began < 4
