"""When a follower counts as caught up."""

from ottla.replication.follower_progress import FollowerFetch, FollowerProgress


def at(now_ms: int, broker_epoch: int = 7) -> FollowerFetch:
    return FollowerFetch(2, broker_epoch, may_join=True, now_ms=now_ms, max_lag_ms=100)


def test_a_follower_that_asks_for_the_log_end_is_caught_up_now() -> None:
    follower = FollowerProgress()
    follower.fetched(at(50), 10, 0, leader_end=10)
    assert follower.caught_up_ms == 50


def test_a_follower_that_asks_for_the_end_of_its_previous_fetch_was_caught_up_then() -> None:
    follower = FollowerProgress()
    follower.fetched(at(50), 0, 0, leader_end=10)
    assert not follower.is_caught_up(10, now_ms=50, max_lag_ms=100)
    follower.fetched(at(90), 10, 0, leader_end=20)
    assert follower.caught_up_ms == 50


def test_a_follower_that_is_always_one_fetch_behind_stays_caught_up_under_load() -> None:
    follower = FollowerProgress()
    for step in range(1000):
        follower.fetched(at(step * 60), step * 10, 0, leader_end=(step + 1) * 10)
    assert follower.is_caught_up(10_010, now_ms=1000 * 60, max_lag_ms=130)


def test_a_follower_that_falls_further_behind_is_not_caught_up_for_long() -> None:
    follower = FollowerProgress()
    follower.fetched(at(0), 0, 0, leader_end=0)
    for step in range(1, 100):
        follower.fetched(at(step * 60), step, 0, leader_end=step * 10)
    assert follower.caught_up_ms == 0
    assert not follower.is_caught_up(1000, now_ms=6000, max_lag_ms=100)


def test_a_silent_follower_with_the_whole_log_is_caught_up() -> None:
    follower = FollowerProgress()
    follower.fetched(at(0), 10, 0, leader_end=10)
    assert follower.is_caught_up(10, now_ms=10**9, max_lag_ms=100)
    assert not follower.is_caught_up(11, now_ms=10**9, max_lag_ms=100)


def test_a_follower_that_asks_for_the_log_end_once_more_is_caught_up_now() -> None:
    follower = FollowerProgress()
    follower.fetched(at(10), 5, 0, leader_end=5)
    assert follower.repeats(at(20), 5, 0) and follower.caught_up_ms == 20
    assert follower.repeats(at(15), 5, 0) and follower.caught_up_ms == 20, "an older request came late"
    assert not follower.repeats(at(30), 4, 0)
    assert not follower.repeats(at(30), 5, 1)
    assert not follower.repeats(at(30, broker_epoch=8), 5, 0)
    follower.fetched(at(40), 5, 0, leader_end=9)
    assert not follower.repeats(at(50), 5, 0)


def test_a_fetch_of_a_former_registration_changes_nothing() -> None:
    follower = FollowerProgress()
    assert follower.fetched(at(10, broker_epoch=8), 5, 0, leader_end=10)
    assert not follower.fetched(at(20, broker_epoch=7), 10, 0, leader_end=10)
    assert (follower.log_end_offset, follower.broker_epoch) == (5, 8)


def test_a_follower_that_never_fetched_is_not_caught_up_however_early_it_is() -> None:
    assert not FollowerProgress().is_caught_up(0, now_ms=0, max_lag_ms=100)
