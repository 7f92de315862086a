"""Which writes go to a thread: those of logs that were slow, and all of them when several logs are."""

from __future__ import annotations

from ottla.replication.slow_disk import FAST_IN_A_ROW, REMEMBERED_SECONDS, SLOW_SECONDS, SlowDisk

SLOW, FAST = 2 * SLOW_SECONDS, SLOW_SECONDS / 100


def test_one_slow_write_makes_a_log_slow_and_no_other() -> None:
    disk = SlowDisk()
    assert not disk.wrote("a-0", 100, FAST, now=0)
    assert disk.wrote("a-0", 100, SLOW, now=0)
    assert not disk.wrote("b-0", 100, FAST, now=0)
    assert not disk.is_slow


def test_a_log_is_slow_until_a_number_of_writes_in_a_row_was_fast() -> None:
    disk = SlowDisk()
    disk.wrote("a-0", 100, SLOW, now=0)
    for _ in range(FAST_IN_A_ROW - 1):
        assert disk.wrote("a-0", 100, FAST, now=1)
    assert disk.wrote("a-0", 100, SLOW, now=2)
    for _ in range(FAST_IN_A_ROW - 1):
        assert disk.wrote("a-0", 100, FAST, now=3)
    assert not disk.wrote("a-0", 100, FAST, now=3)


def test_the_disk_is_slow_while_several_of_its_logs_are() -> None:
    disk = SlowDisk()
    for name in ("a-0", "b-0", "c-0"):
        assert not disk.is_slow
        disk.wrote(name, 100, SLOW, now=0)
    assert disk.is_slow
    for _ in range(FAST_IN_A_ROW):
        disk.wrote("b-0", 100, FAST, now=1)
    assert not disk.is_slow


def test_slow_logs_that_are_not_written_to_any_more_are_forgotten() -> None:
    disk = SlowDisk()
    for name in ("a-0", "b-0", "c-0"):
        disk.wrote(name, 100, SLOW, now=0)
    disk.wrote("d-0", 100, FAST, now=REMEMBERED_SECONDS - 1)
    assert disk.is_slow
    disk.wrote("d-0", 100, FAST, now=REMEMBERED_SECONDS)
    assert not disk.is_slow


def test_a_large_write_that_takes_as_long_as_its_size_explains_is_not_slow() -> None:
    disk = SlowDisk()
    assert not disk.wrote("a-0", 90_000_000, 0.5, now=0)
    assert disk.wrote("a-0", 90_000_000, 5.0, now=0)
