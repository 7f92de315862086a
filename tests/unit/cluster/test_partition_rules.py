"""Who may lead and who is in sync, case by case. `test_partition_safety` holds the rules against a model."""

from __future__ import annotations

import pytest

from ottla.cluster.image import NO_LEADER, PartitionState
from ottla.cluster.partition_rules import (
    Brokers,
    WantedIsr,
    alter,
    is_unclean,
    prefer,
    settle,
    with_replicas,
    without_stale_elr,
)
from ottla.protocol.errors import ApiError, ErrorCode


def partition(
    replicas: tuple[int, ...] = (1, 2, 3),
    *,
    isr: tuple[int, ...] | None = None,
    leader: int = 1,
    elr: tuple[int, ...] = (),
    last: tuple[int, ...] = (),
) -> PartitionState:
    return PartitionState(replicas, replicas if isr is None else isr, leader, 5, 9, elr, last)


def brokers(*active: int, **others: object) -> Brokers:
    return Brokers(frozenset(active), **others)  # type: ignore[arg-type]


def some(*ids: int) -> frozenset[int]:
    return frozenset(ids)


# Brokers that leave and return


def test_nothing_changes_while_all_are_there() -> None:
    state = partition()
    assert settle(state, brokers(1, 2, 3), min_isr=2) is state


def test_a_follower_that_is_fenced_leaves_the_isr_within_the_leader_epoch() -> None:
    assert settle(partition(), brokers(1, 2), min_isr=2) == PartitionState((1, 2, 3), (1, 2), 1, 5, 10)


def test_the_next_replica_in_sync_follows_a_leader_that_is_gone() -> None:
    state = partition(isr=(1, 3))
    assert settle(state, brokers(2, 3), min_isr=1) == PartitionState((1, 2, 3), (3,), 3, 6, 10)


def test_who_leaves_the_isr_below_the_minimum_becomes_eligible() -> None:
    below = settle(partition(), brokers(3), min_isr=2)
    assert below == PartitionState((1, 2, 3), (3,), 3, 6, 10, elr=(1, 2))


def test_an_eligible_replica_leads_when_the_last_one_in_sync_is_gone() -> None:
    state = partition(isr=(3,), leader=3, elr=(1, 2))
    assert settle(state, brokers(2), min_isr=2) == PartitionState((1, 2, 3), (2,), 2, 6, 10, elr=(1, 3))


def test_a_replica_out_of_sync_never_leads_and_the_leader_is_waited_for() -> None:
    state = partition(isr=(3,), leader=3)
    assert settle(state, brokers(1, 2), min_isr=1) is state
    assert settle(state, brokers(), min_isr=1) is state
    assert settle(state, brokers(1, 2, 3), min_isr=1) is state, "it leads on in the same epoch"


def test_members_of_the_isr_that_are_away_together_may_each_lead_when_they_return() -> None:
    state = partition(isr=(2, 3), leader=3)
    assert settle(state, brokers(1), min_isr=1) is state
    assert settle(state, brokers(1, 2), min_isr=1) == PartitionState((1, 2, 3), (2,), 2, 6, 10)


def test_a_restart_of_a_lone_broker_changes_nothing() -> None:
    state = partition((1,))
    for there in (brokers(), brokers(waiting=True), brokers(1), brokers(stopping=some(1))):
        assert settle(state, there, min_isr=1) is state


def test_any_replica_leads_where_the_topic_allows_it() -> None:
    state = partition(isr=(3,), leader=3)
    new = settle(state, brokers(2), min_isr=1, unclean_allowed=True)
    assert new == PartitionState((1, 2, 3), (2,), 2, 6, 10)
    assert is_unclean(state, new, brokers(2))


def test_a_replica_with_an_empty_disk_is_the_last_choice_of_an_unclean_election() -> None:
    state = partition(isr=(3,), leader=3)
    assert settle(state, brokers(1, 2, emptied=some(1)), min_isr=1, unclean_allowed=True).leader == 2
    assert settle(state, brokers(1, emptied=some(1)), min_isr=1, unclean_allowed=True).leader == 1


# A cluster that starts


def test_nothing_is_taken_from_brokers_that_are_awaited() -> None:
    state = partition(leader=3)
    first = brokers(1, seen=some(1), waiting=True)
    assert settle(state, first, min_isr=2) is state
    assert settle(state, first, min_isr=2, unclean_allowed=True) is state
    assert settle(state, brokers(1, seen=some(1)), min_isr=2).leader == 1


def test_a_broker_that_came_and_is_away_again_is_not_awaited() -> None:
    state = partition(leader=3)
    new = settle(state, brokers(1, seen=some(1, 3), waiting=True), min_isr=2)
    assert new == PartitionState((1, 2, 3), (1, 2), 1, 6, 10)


# Brokers that lost records


def test_a_broker_that_lost_records_leaves_the_isr_though_it_is_there() -> None:
    new = settle(partition(), brokers(1, 2, 3, unclean=some(2)), min_isr=3)
    assert new == PartitionState((1, 2, 3), (1, 3), 1, 5, 10), "and is not eligible"


def test_a_leader_that_lost_records_is_replaced() -> None:
    new = settle(partition(), brokers(1, 2, 3, unclean=some(1)), min_isr=1)
    assert new == PartitionState((1, 2, 3), (2, 3), 2, 6, 10)


def test_an_eligible_replica_that_lost_records_is_not_eligible() -> None:
    state = partition(isr=(3,), leader=3, elr=(1, 2))
    new = settle(state, brokers(1, 2, unclean=some(1)), min_isr=2)
    assert (new.leader, new.isr, new.elr) == (2, (2,), (3,))


def test_eligible_replicas_are_waited_for_when_the_leader_lost_records() -> None:
    state = partition(isr=(3,), leader=3, elr=(1, 2))
    offline = settle(state, brokers(3, unclean=some(3)), min_isr=2)
    assert offline == PartitionState((1, 2, 3), (), NO_LEADER, 6, 10, elr=(1, 2), last_known_elr=(3,))
    assert settle(offline, brokers(3), min_isr=2) is offline
    back = settle(offline, brokers(1, 3), min_isr=2)
    assert back == PartitionState((1, 2, 3), (1,), 1, 7, 11, elr=(2,))


def test_a_replica_in_sync_that_is_away_is_waited_for_when_the_leader_lost_records() -> None:
    state = partition(isr=(2, 3), leader=3)
    offline = settle(state, brokers(3, unclean=some(3)), min_isr=1)
    assert offline == PartitionState((1, 2, 3), (2,), NO_LEADER, 6, 10, last_known_elr=(3,))
    assert settle(offline, brokers(1, 2, 3), min_isr=1).leader == 2


def test_the_last_known_leader_leads_when_nobody_is_complete() -> None:
    state = partition(isr=(3,), leader=3)
    there = brokers(1, 2, 3, unclean=some(3))
    new = settle(state, there, min_isr=1)
    assert new == PartitionState((1, 2, 3), (3,), 3, 6, 10), "a new leader epoch tells that records are gone"
    assert is_unclean(state, new, there)


def test_the_last_known_leader_leads_as_soon_as_it_is_not_fenced() -> None:
    offline = settle(partition(isr=(3,), leader=3), brokers(1, unclean=some(3)), min_isr=1)
    assert offline == PartitionState((1, 2, 3), (), NO_LEADER, 6, 10, last_known_elr=(3,))
    assert settle(offline, brokers(1, 2), min_isr=1) is offline
    assert settle(offline, brokers(1, 2, 3), min_isr=1) == PartitionState((1, 2, 3), (3,), 3, 7, 11)


def test_an_empty_disk_does_not_lead_others() -> None:
    state = partition(isr=(3,), leader=3)
    offline = settle(state, brokers(1, 2, 3, unclean=some(3), emptied=some(3)), min_isr=1)
    assert offline == PartitionState((1, 2, 3), (), NO_LEADER, 6, 10)
    assert settle(offline, brokers(1, 2, 3), min_isr=1) is offline, "nor after its next start"
    chosen = settle(offline, brokers(1, 2, 3, emptied=some(3)), min_isr=1, unclean_allowed=True)
    assert chosen.leader == 1


def test_an_empty_disk_of_the_only_replica_leads() -> None:
    new = settle(partition((3,), leader=3), brokers(3, unclean=some(3), emptied=some(3)), min_isr=1)
    assert new == PartitionState((3,), (3,), 3, 6, 10)


# Brokers that stop


def test_a_broker_about_to_stop_hands_over_and_leaves_the_isr() -> None:
    new = settle(partition(), brokers(2, 3, stopping=some(1)), min_isr=1)
    assert new == PartitionState((1, 2, 3), (2, 3), 2, 6, 10)


def test_a_broker_about_to_stop_keeps_what_nobody_else_may_lead() -> None:
    state = partition(isr=(1,))
    assert settle(state, brokers(2, 3, stopping=some(1)), min_isr=1) is state


def test_a_leader_about_to_stop_does_not_wait_for_a_follower_that_is_gone() -> None:
    new = settle(partition(isr=(1, 2)), brokers(3, stopping=some(1)), min_isr=1)
    assert new == PartitionState((1, 2, 3), (1,), 1, 5, 10)


def test_a_stop_of_all_brokers_leaves_the_last_one_as_the_leader() -> None:
    state = partition()
    state = settle(state, brokers(2, 3, stopping=some(1)), min_isr=1)
    state = settle(state, brokers(3, stopping=some(2)), min_isr=1)
    last = settle(state, brokers(stopping=some(3)), min_isr=1)
    assert (last.leader, last.isr) == (3, (3,))
    for there in (brokers(), brokers(1), brokers(1, 2), brokers(1, 2, 3)):
        assert settle(last, there, min_isr=1) is last


# Preferred leaders


def test_the_preferred_replica_leads_again_when_it_is_in_sync() -> None:
    assert prefer(partition(leader=2), brokers(1, 2, 3), min_isr=1) == PartitionState(
        (1, 2, 3), (1, 2, 3), 1, 6, 10
    )


@pytest.mark.parametrize(
    ("state", "there"),
    [
        (partition(), brokers(1, 2, 3)),
        (partition(isr=(2, 3), leader=2), brokers(1, 2, 3)),
        (partition(leader=2), brokers(2, 3)),
        (partition(leader=2), brokers(2, 3, stopping=some(1))),
    ],
)
def test_the_leader_stays_where_the_preferred_one_leads_or_may_not(
    state: PartitionState, there: Brokers
) -> None:
    assert prefer(state, there, min_isr=1) is state


# In-sync sets that leaders ask for

EPOCHS = {1: 101, 2: 102, 3: 103}


def asked(
    *isr: tuple[int, int], sender: int = 1, leader_epoch: int = 5, partition_epoch: int = 9
) -> WantedIsr:
    return WantedIsr(sender, leader_epoch, partition_epoch, isr)


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    there = brokers(1, 2, 3)
    small = alter(partition(), asked((1, 101)), there, EPOCHS, min_isr=2)
    assert small == PartitionState((1, 2, 3), (1,), 1, 5, 10, elr=(2, 3))
    large = alter(small, asked((1, 101), (3, 103), partition_epoch=10), there, EPOCHS, min_isr=2)
    assert large == PartitionState((1, 2, 3), (1, 3), 1, 5, 11)
    assert alter(large, asked((1, 101), (3, 103), partition_epoch=11), there, EPOCHS, min_isr=2) is large


def test_who_is_in_sync_may_stay_under_an_epoch_that_the_leader_does_not_know_yet() -> None:
    there = brokers(1, 2, 3)
    assert alter(partition(), asked((1, 101), (2, -1)), there, EPOCHS, min_isr=1).isr == (1, 2)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (asked((1, 101), leader_epoch=6), ErrorCode.NOT_CONTROLLER),
        (asked((1, 101), partition_epoch=10), ErrorCode.NOT_CONTROLLER),
        (asked((1, 101), leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (asked((1, 101), sender=2), ErrorCode.INVALID_REQUEST),
        (asked((1, 101), partition_epoch=8), ErrorCode.INVALID_UPDATE_VERSION),
        (asked(), ErrorCode.INVALID_REQUEST),
        (asked((2, 102)), ErrorCode.INVALID_REQUEST),
        (asked((1, 101), (1, 101)), ErrorCode.INVALID_REQUEST),
        (asked((1, 101), (4, 104)), ErrorCode.INVALID_REQUEST),
        (asked((1, 101), (3, 103)), ErrorCode.INELIGIBLE_REPLICA),
        (asked((1, 101), (2, 99)), ErrorCode.INELIGIBLE_REPLICA),
        (asked((1, 101), (2, -1)), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_an_isr_is_refused(wanted: WantedIsr, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        alter(partition(isr=(1,)), wanted, brokers(1, 2), EPOCHS, min_isr=1)
    assert refused.value.code is code


def test_a_broker_about_to_stop_does_not_enter_the_isr() -> None:
    there = brokers(1, stopping=some(2))
    with pytest.raises(ApiError) as refused:
        alter(partition(isr=(1,)), asked((1, 101), (2, 102)), there, EPOCHS, min_isr=1)
    assert refused.value.code is ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_about_to_stop_may_still_shrink_its_isr() -> None:
    there = brokers(3, stopping=some(1))
    assert alter(partition(isr=(1, 2)), asked((1, 101)), there, EPOCHS, min_isr=1).isr == (1,)


# Another min.insync.replicas


def test_nobody_is_eligible_once_enough_are_in_sync() -> None:
    state = partition(isr=(1,), elr=(2, 3))
    assert without_stale_elr(state, 2) is state
    assert without_stale_elr(state, 1) == PartitionState((1, 2, 3), (1,), 1, 5, 10)


def test_who_was_eligible_under_a_higher_minimum_does_not_lead_under_a_lower_one() -> None:
    state = partition(isr=(1,), elr=(2, 3))
    new = settle(state, brokers(2, 3), min_isr=1)
    assert (new.leader, new.isr, new.elr, new.leader_epoch) == (1, (1,), (), 5)


# More replicas


def test_added_replicas_are_not_in_sync_and_nothing_is_elected() -> None:
    grown = with_replicas(partition((1,)), (2, 1, 3), min_isr=2)
    assert grown == PartitionState((2, 1, 3), (1,), 1, 5, 10, adding=(2, 3))
    assert settle(grown, brokers(2, 3), min_isr=2) is grown, "an empty replica does not lead"


def test_replicas_are_being_added_until_all_of_them_are_in_sync() -> None:
    grown = with_replicas(partition((1,)), (1, 2), min_isr=2)
    grown = with_replicas(grown, (1, 3, 2), min_isr=2)
    assert grown.adding == (3, 2)

    def joined(state: PartitionState, *isr: int) -> PartitionState:
        wanted = WantedIsr(1, state.leader_epoch, state.partition_epoch, [(each, 7) for each in isr])
        return alter(state, wanted, brokers(1, 2, 3), dict.fromkeys((1, 2, 3), 7), min_isr=2)

    half = joined(grown, 1, 2)
    assert half.adding == (3, 2)
    assert settle(half, brokers(1, 3), min_isr=2).adding == (3, 2)
    assert joined(half, 1, 2, 3).adding == ()
    assert settle(joined(half, 1, 2, 3), brokers(1, 3), min_isr=2).adding == (), "it is over for good"


def test_who_was_not_eligible_by_the_old_number_of_replicas_is_not_by_the_new_one() -> None:
    stale = partition((1, 2), isr=(1,), elr=(2,))
    assert with_replicas(stale, (1, 2, 3), min_isr=1).elr == ()
    assert with_replicas(stale, (1, 2, 3), min_isr=2).elr == (2,)


def test_the_same_replicas_change_nothing() -> None:
    state = partition()
    assert with_replicas(state, (1, 2, 3), min_isr=2) is state


# Disks


def test_an_impaired_leader_hands_over_to_the_next_in_sync_and_leaves() -> None:
    new = settle(partition(), brokers(1, 2, 3, impaired=some(1)), min_isr=2)
    assert new == PartitionState((1, 2, 3), (2, 3), 2, 6, 10)


def test_an_impaired_follower_leaves_where_enough_others_are_in_sync() -> None:
    new = settle(partition(), brokers(1, 2, 3, impaired=some(2)), min_isr=2)
    assert new == PartitionState((1, 2, 3), (1, 3), 1, 5, 10)
    assert settle(partition(isr=(1, 2)), brokers(1, 2, 3, impaired=some(2)), min_isr=1).isr == (1,)


def test_an_impaired_broker_stays_in_sync_below_the_minimum_so_that_the_high_watermark_moves() -> None:
    state = partition(isr=(1, 2))
    assert settle(state, brokers(1, 2, 3, impaired=some(2)), min_isr=2) is state
    new = settle(state, brokers(1, 2, 3, impaired=some(1)), min_isr=2)
    assert new == PartitionState((1, 2, 3), (1, 2), 2, 6, 10)


def test_nothing_moves_while_all_in_sync_are_impaired() -> None:
    state = partition(isr=(1, 2))
    assert settle(state, brokers(1, 2, 3, impaired=some(1, 2)), min_isr=2) is state
    lone = partition((1,))
    assert settle(lone, brokers(1, impaired=some(1)), min_isr=1) is lone


def test_an_impaired_replica_leads_when_the_leader_is_gone_and_no_other_is_complete() -> None:
    state = partition(isr=(1,), elr=(2,))
    new = settle(state, brokers(2, 3, impaired=some(2)), min_isr=2)
    assert new == PartitionState((1, 2, 3), (2,), 2, 6, 10, elr=(1,))


def test_an_eligible_replica_with_a_sound_disk_is_preferred() -> None:
    state = partition(isr=(1,), elr=(2, 3))
    assert settle(state, brokers(2, 3, impaired=some(2)), min_isr=2).leader == 3


def test_leadership_returns_to_an_impaired_preferred_replica_only_when_it_is_mended() -> None:
    state = partition(isr=(1, 2), leader=2)
    assert prefer(state, brokers(1, 2, impaired=some(1, 2)), min_isr=1) is state
    assert prefer(state, brokers(1, 2), min_isr=1).leader == 1


def test_a_failed_replica_is_neither_in_sync_nor_eligible() -> None:
    new = settle(partition(isr=(1, 2)), brokers(1, 2, 3), min_isr=2, failed=some(1))
    assert new == PartitionState((1, 2, 3), (2,), 2, 6, 10)


def test_the_last_one_in_sync_leads_again_when_its_failed_log_is_mended() -> None:
    gone = settle(partition(isr=(1,)), brokers(1, 2, 3), min_isr=1, failed=some(1))
    assert gone == PartitionState((1, 2, 3), (), NO_LEADER, 6, 10, last_known_elr=(1,))
    assert settle(gone, brokers(1, 2, 3), min_isr=1, failed=some(1)) is gone
    back = settle(gone, brokers(1, 2, 3), min_isr=1)
    assert back == PartitionState((1, 2, 3), (1,), 1, 7, 11)
    assert is_unclean(gone, back, brokers(1, 2, 3)), "it may lack records"


def test_a_failed_leader_waits_for_the_eligible_replica_that_is_away() -> None:
    """With its own log mended it may lack what the other has."""
    gone = settle(partition(isr=(1,), elr=(2,)), brokers(1, 3), min_isr=2, failed=some(1))
    assert (gone.leader, gone.isr, gone.elr) == (NO_LEADER, (), (2,))
    assert settle(gone, brokers(1, 3), min_isr=2) is gone
    assert settle(gone, brokers(1, 2, 3), min_isr=2).leader == 2


def test_the_only_replica_keeps_its_partition_though_its_log_failed() -> None:
    state = partition((1,))
    assert settle(state, brokers(1, 2), min_isr=1, failed=some(1)) is state


@pytest.mark.parametrize(("impaired", "failed"), [(some(3), some()), (some(), some(3))])
def test_a_leader_cannot_add_a_replica_whose_disk_is_not_in_order(
    impaired: frozenset[int], failed: frozenset[int]
) -> None:
    state = partition(isr=(1, 2))
    wanted = WantedIsr(1, 5, 9, [(1, 11), (2, 12), (3, 13)])
    epochs = {1: 11, 2: 12, 3: 13}
    with pytest.raises(ApiError) as refused:
        alter(state, wanted, brokers(1, 2, 3, impaired=impaired), epochs, min_isr=2, failed=failed)
    assert refused.value.code is ErrorCode.INELIGIBLE_REPLICA
