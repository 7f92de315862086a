"""What a consumer has read ahead: finished, handed out, waiting, set aside, and the positions that follow."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.client.record_buffer import Position, RecordBuffer, ends_of
from ottla.client.records import ConsumerRecord, TopicPartition, messages_of

A, B, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)


def records(*places: tuple[TopicPartition, int]) -> list[ConsumerRecord]:
    return [ConsumerRecord(*name, offset, leader_epoch=7) for name, offset in places]


def offsets(buffer: RecordBuffer) -> list[tuple[int, int]]:
    """What waits."""
    waiting = buffer.records[buffer.finished + buffer.out :]
    return [(record.partition, record.offset) for record in waiting]


def add(buffer: RecordBuffer, *places: tuple[TopicPartition, int]) -> None:
    made = records(*places)
    buffer.add(made, ends_of(messages_of(made)))


def buffer_of(*places: tuple[TopicPartition, int]) -> RecordBuffer:
    buffer = RecordBuffer()
    add(buffer, *places)
    return buffer


@given(st.lists(st.integers(0, 3) | st.integers(0, 20) | st.integers(250, 260), max_size=40))
def test_the_ends_of_one_topic_are_found_for_partitions_of_any_number(partitions: list[int]) -> None:
    made = records(*((TopicPartition("t", number), offset) for offset, number in enumerate(partitions)))
    last = {TopicPartition("t", number): Position(offset + 1, 7) for offset, number in enumerate(partitions)}
    assert ends_of(messages_of(made), one_topic=True) == ends_of(messages_of(made)) == last


def test_a_record_that_is_out_becomes_a_position_when_it_is_settled() -> None:
    buffer = buffer_of((A, 3), (A, 4), (B, 9))
    assert [record.offset for record in buffer.take(2)] == [3, 4]
    assert buffer.positions() == {}
    assert buffer.handed_out() == {A: Position(5, 7)}
    buffer.settle()
    assert buffer.positions() == {A: Position(5, 7)}
    assert offsets(buffer) == [(1, 9)]
    assert buffer.read() == {A: Position(5, 7), B: Position(10, 7)}
    buffer.take(1)
    assert buffer.positions() == {A: Position(5, 7)}
    buffer.settle()
    assert buffer.positions() == buffer.read()
    assert not buffer.records


def test_records_that_were_skipped_move_the_position_when_all_before_them_are_finished() -> None:
    buffer = RecordBuffer()
    buffer.add(records((A, 0)), {A: Position(5)})
    assert buffer.positions() == {}
    buffer.take(1)
    assert buffer.positions() == {}
    assert buffer.handed_out() == {A: Position(5)}
    buffer.settle()
    assert buffer.positions() == {A: Position(5)}
    buffer.add([], {A: Position(8)})
    add(buffer, (A, 8))
    buffer.take(1)
    buffer.settle()
    assert buffer.positions() == {A: Position(9, 7)}


def test_a_list_that_was_handed_out_is_the_application_s_own() -> None:
    buffer = buffer_of((A, 0), (A, 1))
    taken = buffer.take(2)
    assert isinstance(taken, list)
    taken.clear()
    assert buffer.handed_out() == {A: Position(2, 7)}


def test_a_partition_that_goes_takes_its_records_and_positions_with_it() -> None:
    buffer = buffer_of((A, 0), (B, 0), (A, 1), (B, 1))
    buffer.finished, buffer.out = 1, 1
    buffer.forget([A])
    assert buffer.positions() == {}
    assert buffer.out == 1
    assert offsets(buffer) == [(1, 1)]
    buffer.forget([B])
    assert (buffer.out, buffer.records, buffer.read()) == (0, [], {})


def test_a_paused_partition_waits_and_comes_back_in_order() -> None:
    buffer = buffer_of((A, 0), (B, 0), (A, 1), (B, 1))
    buffer.take(1)
    buffer.set_aside([A])
    assert offsets(buffer) == [(1, 0), (1, 1)]
    add(buffer, (B, 2))
    buffer.take_back([A])
    assert offsets(buffer) == [(0, 1), (1, 0), (1, 1), (1, 2)]
    buffer.set_aside([A])
    buffer.forget([A])
    buffer.take_back([A])
    assert [each for each in offsets(buffer) if each[0] == 0] == []


def test_records_that_are_set_aside_are_read_and_not_finished() -> None:
    buffer = buffer_of((A, 0), (B, 0), (A, 1))
    buffer.take(1)
    buffer.set_aside([A])
    buffer.settle()
    buffer.take(1)
    buffer.settle()
    assert buffer.positions() == {A: Position(1, 7), B: Position(1, 7)}
    assert buffer.read() == {A: Position(2, 7), B: Position(1, 7)}
    buffer.take_back([A])
    buffer.take(1)
    buffer.settle()
    assert buffer.positions() == {A: Position(2, 7), B: Position(1, 7)}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from([A, B, OTHER]), st.integers(1, 3)), max_size=30),
    st.lists(st.tuples(st.booleans(), st.integers(1, 7)), max_size=20),
)
def test_positions_are_behind_what_is_finished_in_whatever_portions(
    steps: list[tuple[TopicPartition, int]], portions: list[tuple[bool, int]]
) -> None:
    """Steps are records, with gaps between their offsets; portions of them are read, or handed out."""
    last: dict[TopicPartition, int] = {}
    places = []
    for name, gap in steps:
        last[name] = last.get(name, 0) + gap
        places.append((name, last[name]))

    def behind(count: int) -> dict[TopicPartition, Position]:
        return {name: Position(offset + 1, 7) for name, offset in places[:count]}

    buffer = RecordBuffer()
    read = out = finished = 0
    for is_read, portion in portions:
        if is_read:
            add(buffer, *places[read : read + portion])
            read = min(read + portion, len(places))
        else:
            buffer.settle()
            finished, out = finished + out, min(portion, read - finished - out)
            assert len(buffer.take(portion)) == out
        assert buffer.positions() == behind(finished)
        assert buffer.handed_out() == behind(finished + out)
        assert buffer.read() == behind(read)
