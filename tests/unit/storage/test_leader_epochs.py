"""The history of leaders, as OffsetForLeaderEpoch asks for it."""

import pytest

from ottla.storage.leader_epochs import CorruptCheckpoint, LeaderEpochs


def epochs() -> LeaderEpochs:
    return LeaderEpochs([(1, 0), (3, 10), (4, 25)])


def test_an_epoch_is_recorded_once() -> None:
    history = LeaderEpochs()
    assert history.latest == -1
    assert history.assign(0, 0)
    assert not history.assign(0, 5)
    assert history.assign(2, 5)
    assert history.entries == [(0, 0), (2, 5)]
    assert history.latest == 2


def test_a_new_epoch_removes_epochs_without_records() -> None:
    history = epochs()
    assert history.assign(5, 10)
    assert history.entries == [(1, 0), (5, 10)]


def test_the_end_of_an_epoch_is_where_the_next_begins() -> None:
    history = epochs()
    assert history.end_offset_for(1, 99) == (1, 10)
    assert history.end_offset_for(2, 99) == (1, 10)
    assert history.end_offset_for(3, 99) == (3, 25)


def test_the_latest_epoch_ends_at_the_end_of_the_log() -> None:
    assert epochs().end_offset_for(4, 99) == (4, 99)


def test_an_unknown_epoch_is_answered_with_minus_one() -> None:
    assert epochs().end_offset_for(-1, 99) == (-1, -1)
    assert epochs().end_offset_for(5, 99) == (-1, -1)
    assert LeaderEpochs().end_offset_for(0, 0) == (-1, -1)


def test_an_epoch_older_than_the_log_ends_where_the_log_starts() -> None:
    assert LeaderEpochs([(3, 10)]).end_offset_for(1, 99) == (1, 10)


def test_the_epoch_of_an_offset_is_found() -> None:
    history = epochs()
    assert [history.epoch_for(offset) for offset in (0, 9, 10, 24, 25, 1000)] == [1, 1, 3, 3, 4, 4]
    assert LeaderEpochs([(3, 10)]).epoch_for(9) == -1


def test_truncation_at_the_end_forgets_epochs_that_begin_there() -> None:
    history = epochs()
    assert history.truncate_end(25)
    assert history.entries == [(1, 0), (3, 10)]
    assert not history.truncate_end(25)


def test_truncation_at_the_start_keeps_the_epoch_around_it() -> None:
    history = epochs()
    assert history.truncate_start(12)
    assert history.entries == [(3, 12), (4, 25)]
    assert not history.truncate_start(12)
    assert not history.truncate_start(5)


def test_the_file_has_the_format_of_kafka() -> None:
    assert epochs().encode() == b"0\n3\n1 0\n3 10\n4 25\n"
    assert LeaderEpochs.decode(epochs().encode()).entries == epochs().entries
    assert LeaderEpochs.decode(b"0\n0\n").entries == []


@pytest.mark.parametrize(
    "data", [b"", b"0\n", b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\nx y\n", b"0\n1\n1 0 7\n", b"\xff\xfe"]
)
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        LeaderEpochs.decode(data)
