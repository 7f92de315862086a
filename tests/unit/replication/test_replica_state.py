"""The high watermark, from events alone."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ottla.replication.replica_state import ReplicaState


def leader(*isr: int, replicas: tuple[int, ...] = (1, 2, 3), end: int = 0, mark: int = 0) -> ReplicaState:
    state = ReplicaState(local_id=1, log_end_offset=end, high_watermark=mark)
    state.assign(leader=1, leader_epoch=5, replicas=replicas, isr=isr or (1,), partition_epoch=1)
    return state


def test_a_lone_replica_commits_what_it_appends() -> None:
    state = leader(1, replicas=(1,))
    assert state.appended(10)
    assert state.high_watermark == 10


def test_a_lone_replica_commits_its_whole_log_when_it_starts_to_lead() -> None:
    assert leader(1, replicas=(1,), end=42, mark=17).high_watermark == 42


def test_the_high_watermark_waits_for_the_slowest_replica_in_sync() -> None:
    state = leader(1, 2, 3)
    state.appended(10)
    assert state.high_watermark == 0
    assert not state.fetched(2, leader_epoch=5, offset=10, now_ms=0)
    assert state.fetched(3, leader_epoch=5, offset=7, now_ms=0)
    assert state.high_watermark == 7


def test_a_replica_out_of_sync_does_not_hold_back_the_high_watermark() -> None:
    state = leader(1, 2)
    state.appended(10)
    state.fetched(3, leader_epoch=5, offset=1, now_ms=0)
    state.fetched(2, leader_epoch=5, offset=9, now_ms=0)
    assert state.high_watermark == 9


def test_a_fetch_of_another_leader_epoch_changes_nothing() -> None:
    state = leader(1, 2)
    state.appended(10)
    assert not state.fetched(2, leader_epoch=4, offset=10, now_ms=0)
    assert state.high_watermark == 0


def test_an_older_assignment_changes_nothing() -> None:
    state = leader(1)
    assert not state.assign(leader=2, leader_epoch=4, replicas=(1, 2), isr=(2,), partition_epoch=9)
    assert not state.assign(leader=2, leader_epoch=6, replicas=(1, 2), isr=(2,), partition_epoch=0)
    assert state.is_leader


def test_a_new_leader_epoch_is_reported_once() -> None:
    state = ReplicaState(1, 0, 0)
    assert state.assign(leader=1, leader_epoch=5, replicas=(1,), isr=(1,), partition_epoch=1)
    assert not state.assign(leader=1, leader_epoch=5, replicas=(1, 2), isr=(1,), partition_epoch=2)
    assert state.assign(leader=1, leader_epoch=6, replicas=(1, 2), isr=(1,), partition_epoch=3)


def test_the_high_watermark_of_a_follower_never_exceeds_its_log_end() -> None:
    state = ReplicaState(2, log_end_offset=5, high_watermark=3)
    state.assign(leader=1, leader_epoch=5, replicas=(1, 2), isr=(1, 2), partition_epoch=1)
    assert state.learned(9)
    assert state.high_watermark == 5
    state.truncated(4)
    assert state.high_watermark == 4


def test_a_checkpoint_above_the_log_is_cut_to_the_log() -> None:
    assert ReplicaState(1, log_end_offset=5, high_watermark=9).high_watermark == 5


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.tuples(st.sampled_from([2, 3]), st.integers(0, 5)),
            st.tuples(st.just("isr"), st.sampled_from([(1,), (1, 2), (1, 3), (1, 2, 3)])),
        )
    )
)
def test_the_high_watermark_never_falls_and_never_passes_a_replica_in_sync(events: list[Any]) -> None:
    state = leader(1, 2, 3)
    ends = {1: 0, 2: -1, 3: -1}
    before, version = 0, 1
    for who, what in events:
        if who == "append":
            ends[1] += what
            state.appended(ends[1])
        elif who == "isr":
            # The controller admits only replicas that have reached the high watermark.
            isr = tuple(r for r in what if ends[r] >= state.high_watermark)
            version += 1
            state.assign(1, 5, (1, 2, 3), isr, version)
        else:
            ends[who] = min(max(ends[who], 0) + what, ends[1])
            state.fetched(who, 5, ends[who], now_ms=0)
        assert state.high_watermark >= before
        assert all(state.high_watermark <= max(ends[r], before) for r in state.isr)
        before = state.high_watermark
