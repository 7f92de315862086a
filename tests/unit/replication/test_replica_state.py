"""The high watermark and the in-sync set, from events alone."""

from __future__ import annotations

from random import Random

import pytest

from ottla.replication.follower_progress import FollowerFetch
from ottla.replication.replica_state import IsrProposal, ReplicaState

EPOCH = 5
BROKER_EPOCHS = {2: 20, 3: 30}
MAX_LAG_MS = 100


def leader(
    *isr: int, replicas: tuple[int, ...] = (1, 2, 3), end: int = 0, mark: int = 0, min_isr: int = 1
) -> ReplicaState:
    state = ReplicaState(local_id=1, log_end_offset=end, high_watermark=mark, min_isr=min_isr)
    state.assign(leader=1, leader_epoch=EPOCH, replicas=replicas, isr=isr or (1,), partition_epoch=1)
    return state


def fetch(
    state: ReplicaState,
    replica: int,
    offset: int,
    *,
    now_ms: int = 0,
    leader_epoch: int = EPOCH,
    log_end: int | None = None,
    may_join: bool = True,
    broker_epoch: int | None = None,
) -> bool:
    return state.fetched(
        FollowerFetch(replica, broker_epoch or BROKER_EPOCHS[replica], may_join, now_ms, MAX_LAG_MS),
        leader_epoch,
        offset,
        log_end=state.local_end if log_end is None else log_end,
    )


# -- the high watermark -----------------------------------------------------------------------------------


def test_a_lone_replica_commits_what_it_appends() -> None:
    state = leader(1, replicas=(1,))
    assert state.appended(10)
    assert state.high_watermark == 10


def test_a_lone_replica_commits_its_whole_log_when_it_starts_to_lead() -> None:
    assert leader(1, replicas=(1,), end=42, mark=17).high_watermark == 42


def test_a_topic_may_demand_more_replicas_than_it_has() -> None:
    state = leader(1, replicas=(1,), min_isr=2)
    assert state.appended(10) and not state.is_under_min_isr


def test_the_high_watermark_waits_for_the_slowest_replica_in_sync() -> None:
    state = leader(1, 2, 3)
    state.appended(10)
    assert state.high_watermark == 0
    assert not fetch(state, 2, 10)
    assert fetch(state, 3, 7)
    assert state.high_watermark == 7


def test_a_replica_out_of_sync_does_not_hold_back_the_high_watermark() -> None:
    state = leader(1, 2)
    state.appended(10)
    fetch(state, 3, 1)
    fetch(state, 2, 9)
    assert state.high_watermark == 9


def test_a_fetch_of_another_leader_epoch_changes_nothing() -> None:
    state = leader(1, 2)
    state.appended(10)
    assert not fetch(state, 2, 10, leader_epoch=4)
    assert not fetch(state, 2, 10, leader_epoch=-1)
    assert state.high_watermark == 0


def test_a_fetch_of_a_brokers_former_registration_changes_nothing() -> None:
    state = leader(1, 2)
    state.appended(10)
    fetch(state, 2, 5, broker_epoch=21)
    assert not fetch(state, 2, 10, broker_epoch=20)
    assert state.high_watermark == 5


def test_the_high_watermark_stands_while_fewer_are_in_sync_than_the_topic_demands() -> None:
    state = leader(1, min_isr=2)
    assert not state.appended(10)
    assert state.high_watermark == 0 and state.is_under_min_isr
    assert state.set_min_isr(1)
    assert state.high_watermark == 10


def test_a_new_leader_starts_from_the_high_watermark_it_knew() -> None:
    state = ReplicaState(1, log_end_offset=10, high_watermark=4)
    state.assign(1, EPOCH, (1, 2), (1, 2), 1)
    assert (state.high_watermark, state.epoch_start) == (4, 10)
    assert fetch(state, 2, 10)
    assert state.high_watermark == 10


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


def test_the_low_watermark_is_the_smallest_log_start_of_the_living_replicas() -> None:
    state = leader(1, 2, 3, end=10)
    one = FollowerFetch(2, 20, True, 0, MAX_LAG_MS)
    state.fetched(one, EPOCH, 10, log_end=10, log_start=3)
    assert state.low_watermark(8, lambda _: True) == -1
    assert state.low_watermark(8, lambda replica: replica == 2) == 3
    assert state.low_watermark(8, lambda _: False) == 8


# -- the in-sync set --------------------------------------------------------------------------------------


def test_a_follower_with_all_below_the_high_watermark_may_join() -> None:
    state = leader(1, 2, end=10, mark=5)
    fetch(state, 2, 8)
    assert state.expand_due(BROKER_EPOCHS.get) is None
    fetch(state, 3, 10)
    assert state.expand_due(BROKER_EPOCHS.get) == (1, 2, 3)


def test_a_follower_below_the_start_of_the_leader_epoch_may_not_join() -> None:
    state = leader(1, 2, end=10, mark=5)
    fetch(state, 3, 9)
    fetch(state, 3, 9, log_end=9)
    assert state.expand_due(BROKER_EPOCHS.get) is None


@pytest.mark.parametrize("registered", [None, 31])
def test_a_follower_that_is_fenced_or_registered_anew_may_not_join(registered: int | None) -> None:
    state = leader(1, 2)
    fetch(state, 3, 0)
    assert state.expand_due(lambda _: registered) is None


def test_the_high_watermark_waits_for_a_caught_up_follower_that_may_join() -> None:
    """A producer that never pauses would keep it out of the in-sync set for ever otherwise."""
    state = leader(1, replicas=(1, 2), end=0)
    for step in range(1, 100):
        state.appended(step * 10)
        fetch(state, 2, (step - 1) * 10, now_ms=step)
        if state.expand_due(BROKER_EPOCHS.get):
            break
    assert state.expand_due(BROKER_EPOCHS.get) == (1, 2)
    assert state.high_watermark == state.follower(2).log_end_offset  # type: ignore[union-attr]
    assert not state.appended(2000)


def test_a_follower_that_stops_catching_up_is_not_waited_for() -> None:
    state = leader(1, replicas=(1, 2))
    fetch(state, 2, 0)
    assert not state.appended(10)
    assert state.stop_waiting_for(lambda replica, follower: not follower.is_caught_up(10, 500, MAX_LAG_MS))
    assert state.high_watermark == 10
    assert state.expand_due(BROKER_EPOCHS.get) is None


def test_a_fenced_follower_is_not_waited_for() -> None:
    state = leader(1, replicas=(1, 2))
    fetch(state, 2, 0, may_join=False)
    assert state.appended(10)


def test_a_follower_that_lost_records_with_a_restart_is_not_waited_for() -> None:
    """It was caught up a moment ago, but that log is gone: copying a new one may take long."""
    state = leader(1, 2, 3)
    state.appended(10)
    fetch(state, 2, 10)
    fetch(state, 3, 10)
    state.assign(1, EPOCH, (1, 2, 3), (1, 2), 2)
    fetch(state, 3, 0, now_ms=50, broker_epoch=31)
    state.appended(20)
    assert fetch(state, 2, 20, now_ms=50)
    assert state.high_watermark == 20


def test_a_follower_that_lost_nothing_with_a_restart_is_waited_for() -> None:
    state = leader(1, 2, 3)
    state.appended(10)
    fetch(state, 2, 10)
    fetch(state, 3, 10)
    state.assign(1, EPOCH, (1, 2, 3), (1, 2), 2)
    state.appended(20)
    fetch(state, 3, 10, now_ms=50, broker_epoch=31)
    assert not fetch(state, 2, 20, now_ms=50)
    assert state.expand_due({3: 31}.get) == (1, 2, 3)


def test_a_leader_knows_whether_all_replicas_are_in_sync() -> None:
    state = leader(1, 2)
    assert state.is_under_replicated
    state.assign(1, EPOCH, (1, 2, 3), (1, 2, 3), 2)
    assert not state.is_under_replicated
    state.assign(2, EPOCH + 1, (1, 2, 3), (2,), 3)
    assert not state.is_under_replicated, "that is for its leader to say"


def test_a_follower_that_lags_too_long_leaves() -> None:
    state = leader(1, 2, 3)
    state.appended(10)
    fetch(state, 2, 10, now_ms=90)
    fetch(state, 3, 9, now_ms=90)
    assert state.shrink_due(100, MAX_LAG_MS, 10) is None
    assert state.shrink_due(101, MAX_LAG_MS, 10) == (1, 2)


def test_a_follower_in_sync_gets_time_for_its_first_fetch_from_a_new_leader() -> None:
    state = ReplicaState(1, 10, 0)
    state.assign(1, EPOCH, (1, 2), (1, 2), 1, now_ms=5000)
    assert state.shrink_due(5100, MAX_LAG_MS, 10) is None
    assert state.shrink_due(5101, MAX_LAG_MS, 10) == (1,)


def test_a_silent_follower_of_an_idle_partition_stays() -> None:
    state = leader(1, 2)
    fetch(state, 2, 0)
    assert state.shrink_due(10**9, MAX_LAG_MS, 0) is None


def test_both_sets_count_while_an_expansion_is_under_way() -> None:
    state = leader(1, 2)
    fetch(state, 2, 0)
    fetch(state, 3, 0)
    proposal = state.propose(state.expand_due(BROKER_EPOCHS.get) or ())
    state.appended(10)
    assert not fetch(state, 2, 10)
    assert state.isr == (1, 2) and state.maximal_isr == {1, 2, 3}
    assert state.shrink_due(10**6, MAX_LAG_MS, 10) is None, "one change at a time"
    state.altered(proposal, 1, EPOCH, (1, 2, 3), 2)
    assert state.high_watermark == 0
    assert fetch(state, 3, 4)


def test_both_sets_count_while_a_shrink_is_under_way() -> None:
    state = leader(1, 2, 3)
    state.appended(10)
    fetch(state, 2, 10, now_ms=1000)
    proposal = state.propose(state.shrink_due(1000, MAX_LAG_MS, 10) or ())
    assert proposal.isr == (1, 2) and state.high_watermark == 0
    assert state.altered(proposal, 1, EPOCH, (1, 2), 2)
    assert (state.high_watermark, state.partition_epoch) == (10, 2)


def test_a_refused_proposal_is_over() -> None:
    state = leader(1, 2)
    fetch(state, 3, 0, may_join=False)
    proposal = state.propose((1, 2, 3))
    state.appended(10)
    assert not fetch(state, 2, 10)
    assert state.altered(proposal, 1, EPOCH, (1, 2), 1)
    assert state.high_watermark == 10


def test_a_late_answer_to_a_former_proposal_does_not_end_the_present_one() -> None:
    state = leader(1, 2)
    first = state.propose((1,))
    state.assign(1, EPOCH, (1, 2, 3), (1,), 2)
    assert state.proposal is None
    second = state.propose((1, 3))
    assert not state.altered(first, 1, EPOCH, (1,), 2)
    assert state.proposal is second


def test_the_same_assignment_again_leaves_a_proposal_under_way() -> None:
    state = leader(1, 2)
    proposal = state.propose((1, 2, 3))
    state.assign(1, EPOCH, (1, 2, 3), (1, 2), 1)
    assert state.proposal is proposal


def test_an_answer_about_another_leader_changes_nothing() -> None:
    state = leader(1, 2)
    proposal = state.propose((1,))
    assert not state.altered(proposal, 2, EPOCH + 1, (2,), 9)
    assert state.proposal is proposal and state.isr == (1, 2)


def test_a_deposed_leader_proposes_nothing() -> None:
    state = leader(1, 2)
    fetch(state, 3, 0)
    state.propose((1, 2, 3))
    state.assign(2, EPOCH + 1, (1, 2, 3), (1, 2), 2)
    assert state.proposal is None and not state.has_followers
    assert state.expand_due(BROKER_EPOCHS.get) is None
    assert state.shrink_due(10**9, MAX_LAG_MS, 0) is None


def test_members_are_named_with_the_epochs_they_had_when_they_were_proposed() -> None:
    """A follower that has started again since may have lost what it had."""
    state = leader(1, 2)
    fetch(state, 3, 0)
    proposal = state.propose(state.expand_due(BROKER_EPOCHS.get) or ())
    assert (proposal.isr, proposal.broker_epochs) == ((1, 2, 3), (-1, -1, 30))
    fetch(state, 3, 0, broker_epoch=31)
    assert state.proposal is proposal


class Controller:
    """Accepts a proposal when its partition epoch is the present one, as the real one does."""

    def __init__(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.partition_epoch = 1

    def alter(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        if partition_epoch == self.partition_epoch:
            self.isr = isr
            self.partition_epoch += 1


@pytest.mark.parametrize("min_isr", [1, 2, 3])
def test_every_member_of_the_controllers_isr_has_all_that_is_committed(min_isr: int) -> None:
    """The promise of KIP-497, with requests and answers that are lost or late.

    Besides, the high watermark never falls, and moves only with enough replicas in sync.
    """
    reached = 0
    for seed in range(150):
        run = Walk(Random(seed), min_isr)
        for _ in range(150):
            run.step()
            run.check(f"seed {seed}")
        reached += run.state.high_watermark
    assert reached > 150


class Walk:
    """A leader with two followers and a controller, one random event after the other."""

    def __init__(self, rng: Random, min_isr: int) -> None:
        self.rng = rng
        self.min_isr = min_isr
        self.state = leader(1, 2, 3, min_isr=min_isr)
        self.controller = Controller((1, 2, 3))
        self.ends = {1: 0, 2: 0, 3: 0}
        self.answers: list[tuple[IsrProposal, int, int, tuple[int, ...], int]] = []
        self.image_of = self.controller.isr, self.controller.partition_epoch
        self.now = 0
        self.before = (0, self.state.isr)
        self.events = (
            [self.append] * 4
            + [self.fetch] * 8
            + [self.wait, self.fence, *[self.image] * 4]
            + [self.propose, self.request, self.answer] * 3
        )

    def step(self) -> None:
        self.before = self.state.high_watermark, self.state.isr
        self.rng.choice(self.events)()

    def check(self, context: str) -> None:
        mark = self.state.high_watermark
        before, isr = self.before
        assert mark >= before, context
        assert all(self.ends[replica] >= mark for replica in self.controller.isr), context
        assert mark == before or max(len(isr), len(self.state.isr)) >= self.min_isr, context

    def append(self) -> None:
        self.ends[1] += self.rng.randint(1, 3)
        self.state.appended(self.ends[1])

    def fetch(self) -> None:
        replica = self.rng.choice([2, 3])
        self.ends[replica] = min(self.ends[replica] + self.rng.randint(0, 5), self.ends[1])
        fetch(self.state, replica, self.ends[replica], now_ms=self.now)

    def wait(self) -> None:
        self.now += self.rng.randint(1, 2 * MAX_LAG_MS)

    def propose(self) -> None:
        state, end, now = self.state, self.ends[1], self.now
        due = state.shrink_due(now, MAX_LAG_MS, end) or state.expand_due(BROKER_EPOCHS.get)
        if due:
            state.propose(due)
        state.stop_waiting_for(lambda _, follower: not follower.is_caught_up(end, now, MAX_LAG_MS))

    def request(self) -> None:
        if (proposal := self.state.proposal) is not None:
            self.controller.alter(proposal.isr, proposal.partition_epoch)
            self.answers.append((proposal, 1, EPOCH, self.controller.isr, self.controller.partition_epoch))

    def answer(self) -> None:
        """It may come late, or never."""
        if self.answers:
            answer = self.answers.pop(self.rng.randrange(len(self.answers)))
            if self.rng.random() < 0.7:
                self.state.altered(*answer)

    def image(self) -> None:
        """It comes late, and may come twice."""
        self.state.assign(1, EPOCH, (1, 2, 3), *self.image_of)
        self.image_of = self.controller.isr, self.controller.partition_epoch

    def fence(self) -> None:
        gone = self.rng.choice([2, 3])
        rest = tuple(replica for replica in self.controller.isr if replica != gone)
        if rest != self.controller.isr:
            self.controller.alter(rest, self.controller.partition_epoch)
