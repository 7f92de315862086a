"""What a follower takes of its leader's bytes, and what it refuses."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.log_config import LogConfig
from ottla.storage.scan import LARGEST_OFFSET
from unit.storage.logs import Store, batch, offsets


def sent(base_offset: int, count: int = 1, *, epoch: int = 0, value: bytes = b"value") -> memoryview:
    """A batch as a leader has it in its log."""
    data = batch(count, leader_epoch=epoch, value=value)
    data[:8] = base_offset.to_bytes(8, "big")
    return data


def joined(*batches: memoryview) -> memoryview:
    return memoryview(b"".join(batches))


def refusal(store: Store, records: memoryview, leader_epoch: int = 9) -> ApiError:
    end = store.log.end_offset
    with pytest.raises(ApiError) as refused:
        store.log.append_replicated(records, leader_epoch)
    assert store.log.end_offset == end
    return refused.value


def test_what_lies_before_a_damaged_batch_is_taken() -> None:
    store = Store()
    damaged = sent(4, 2)
    damaged[-1] ^= 1
    records = joined(sent(0, 2), sent(2, 2), damaged, sent(6, 2))
    assert store.log.append_replicated(records, 0).last_offset == 3
    assert refusal(store, damaged).code is ErrorCode.CORRUPT_MESSAGE
    assert offsets(store.crash()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(joined(sent(1, 2)), ErrorCode.OFFSET_OUT_OF_RANGE, id="within the log"),
        pytest.param(
            joined(sent(LARGEST_OFFSET, 1)), ErrorCode.OFFSET_OUT_OF_RANGE, id="at the end of all offsets"
        ),
        pytest.param(joined(sent(2, epoch=4)), ErrorCode.CORRUPT_MESSAGE, id="of an older epoch"),
        pytest.param(joined(sent(2, epoch=8)), ErrorCode.CORRUPT_MESSAGE, id="of an epoch to come"),
        pytest.param(joined(sent(2, epoch=5))[:-1], ErrorCode.CORRUPT_MESSAGE, id="cut off"),
        pytest.param(memoryview(bytes(500)), ErrorCode.CORRUPT_MESSAGE, id="zeros"),
        pytest.param(memoryview(b"\xff" * 500), ErrorCode.CORRUPT_MESSAGE, id="ones"),
        pytest.param(memoryview(b"x"), ErrorCode.CORRUPT_MESSAGE, id="less than a header"),
    ],
)
def test_a_batch_that_cannot_follow_the_log_is_refused(records: memoryview, code: ErrorCode) -> None:
    store = Store()
    store.log.append_replicated(sent(0, 2, epoch=5), 7)
    assert refusal(store, records, leader_epoch=7).code is code
    assert store.log.append_replicated(sent(2, epoch=7), 7).last_offset == 2


def test_an_epoch_without_records_goes_when_the_leader_has_none_of_it() -> None:
    """This replica led in epoch 6, wrote nothing, and another one led again in epoch 7."""
    store = Store()
    store.log.append_replicated(sent(0, 2, epoch=5), 5)
    store.log.begin_epoch(6)
    store.log.append_replicated(joined(sent(2, epoch=5), sent(3, epoch=7)), 7)
    assert store.log.leader_epochs.entries == [(5, 0), (7, 3)]


def test_more_than_a_segment_is_appended_in_portions() -> None:
    store = Store(segment_bytes=1000)
    records = joined(*(sent(offset, value=bytes(100)) for offset in range(30)))
    assert store.log.append_replicated(records, 0).last_offset == 29
    assert all(segment.size <= 1000 for segment in store.log.segments)
    assert b"".join(store.files(".log").values()) == bytes(records)
    assert offsets(store.crash()) == list(range(30))


def test_a_batch_that_is_larger_than_a_segment_by_now_is_taken() -> None:
    store = Store()
    store.log.append_replicated(sent(0), 0)
    store.log.configure(LogConfig(segment_bytes=1000))
    store.log.append_replicated(joined(sent(1, value=bytes(5000)), sent(2)), 0)
    assert store.log.segment_count == 3
    assert offsets(store.crash()) == [0, 1, 2]


def test_a_gap_that_no_segment_can_span_begins_another() -> None:
    store = Store(cleanup_policy=("compact",))
    far = 3 << 31
    store.log.append_replicated(joined(sent(0), sent(far), sent(far + 1)), 0)
    assert [segment.base_offset for segment in store.log.segments] == [0, far]
    assert offsets(store.crash()) == [0, far, far + 1]


def test_a_gap_in_a_topic_that_is_not_compacted_is_believed_when_it_comes_twice() -> None:
    """Offsets are not covered by the CRC: it may be a flipped bit. Or the topic was compacted once."""
    store = Store()
    store.log.append_replicated(joined(sent(0, 2), sent(66, 2)), 0)
    assert store.log.end_offset == 2
    assert refusal(store, sent(66, 2)).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert refusal(store, sent(34, 2)).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert refusal(store, sent(66, 2)).code is ErrorCode.OFFSET_OUT_OF_RANGE
    store.log.append_replicated(joined(sent(66, 2), sent(90, 2)), 0)
    assert offsets(store.crash()) == [0, 1, 66, 67, 90, 91]


def test_a_portion_that_a_thread_writes_counts_when_it_is_finished() -> None:
    store = Store()
    store.log.append_replicated(sent(0, 2, epoch=5), 5)
    (portion,) = store.log.check_replicated(joined(sent(2, epoch=5), sent(3, 2, epoch=6)), 6)
    slow = store.log.begin_replicated(portion)
    slow.write()
    assert store.log.end_offset == 2
    with pytest.raises(AssertionError):
        store.log.truncate_to(1)
    with pytest.raises(AssertionError):
        store.log.truncate_fully(5)
    with pytest.raises(ApiError):
        store.log.append(batch(1), 6)
    info = store.log.finish_append(slow)
    assert (info.first_offset, info.last_offset) == (2, 4)
    assert store.log.leader_epochs.entries == [(5, 0), (6, 3)]
    assert offsets(store.crash()) == [0, 1, 2, 3, 4]


def test_a_portion_that_is_given_up_leaves_nothing_in_the_log() -> None:
    store = Store()
    store.log.append_replicated(sent(0, 2), 0)
    (portion,) = store.log.check_replicated(sent(2, 5), 0)
    slow = store.log.begin_replicated(portion)
    slow.write()
    store.log.give_up_append(slow)
    assert store.log.truncate_to(1) and store.log.end_offset == 0
    store.log.append(batch(3), 1)
    assert offsets(store.crash()) == [0, 1, 2]
