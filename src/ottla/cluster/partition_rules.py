"""Who leads a partition and which replicas are in sync: pure rules, from one `PartitionState` to the next.

The controller asks here whenever brokers come, go, stop or fall silent (`settle`), when a leader reports
another in-sync set (`alter`), and when the preferred leader shall lead again (`prefer`). A function returns
the state it was given, the same object, when nothing has to change.

The rules:

- The leader is in the ISR. A new leader comes from the ISR, in the order of the replicas. When nobody of it
  is there, it comes from the eligible leader replicas (ELR, KIP-966), and becomes the only one in sync.
- A replica that leaves the ISR while fewer than `min.insync.replicas` stay enters the ELR. The high watermark
  does not advance below that number, so such a replica has everything below it. With enough replicas in sync
  the ELR is empty. As in Kafka `min.insync.replicas` counts as the number of replicas where it is larger.
- A broker that registers after it may have lost records leaves ISR and ELR. When that leaves nobody, the last
  known leader may lead again: its log is the best there is. It does not when it came back with an empty disk,
  unless it is the only replica: the others would throw away what they have.
- A replica whose log has failed leaves ISR and ELR like one that lost records, and cannot lead. The only
  replica of a partition keeps it: its answers say what is wrong.
- A broker whose disk is impaired (full, or it refuses work) is complete, but cannot take more. It hands over
  what it leads to a member of the ISR that is not impaired; when all are, the leader stays. It leaves the ISR
  where `min.insync.replicas` others are in sync: below that the high watermark of a new leader would stand
  still, and hide the last records from consumers.
- Only with `unclean.leader.election.enable`, or when an operator asks for it, any other replica may lead.
- Replicas that were added are remembered as such until all of them are in sync.
- The leader epoch grows with each election, the partition epoch with each change.

A partition whose leader is away, and that nobody else may lead, keeps its state: the broker is expected
back, and then leads on in the same leader epoch. Clients get LEADER_NOT_AVAILABLE meanwhile, since the image
says that the broker is away. So a restart of a lone broker, or of all brokers, changes nothing. A partition
has no leader (`NO_LEADER`) only when its leader came back with records missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ottla.cluster.disk_states import NOBODY
from ottla.cluster.image import NO_LEADER, PartitionState
from ottla.protocol.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class Brokers:
    """What the rules have to know about the brokers. Who is in none of the sets is away or fenced."""

    active: frozenset[int]
    """Registered, heard from and not about to stop: they may be elected and be in sync."""
    stopping: frozenset[int] = NOBODY
    """About to stop: they lead only what nobody else may lead."""
    unclean: frozenset[int] = NOBODY
    """They have just registered and may have lost records."""
    emptied: frozenset[int] = NOBODY
    """They registered with an empty disk."""
    impaired: frozenset[int] = NOBODY
    """Their disks are full or refuse work: they lead only what nobody else may lead."""
    seen: frozenset[int] = NOBODY
    """All that were in service since the cluster started. Needed only with `waiting`."""
    waiting: bool = False
    """The cluster is just starting: nothing is taken from brokers that have not come yet."""

    def awaits(self, broker: int) -> bool:
        return self.waiting and broker not in self.seen

    def may_stay(self, broker: int) -> bool:
        """Whether a broker that is in sync counts as in sync on."""
        return broker in self.active or self.awaits(broker)


def settle(
    state: PartitionState,
    brokers: Brokers,
    *,
    min_isr: int,
    unclean_allowed: bool = False,
    failed: frozenset[int] = NOBODY,
) -> PartitionState:
    """The state that the partition has to be in, with the brokers as they are.

    `failed`: brokers whose replica of it has no sound log.
    """
    if failed and len(state.replicas) > 1:
        brokers = replace(brokers, active=brokers.active - failed, unclean=brokers.unclean | failed)
    isr = _without(state.isr, brokers.unclean)
    elr = _without(_valid_elr(state, min_isr), brokers.unclean)
    complete = _union(elr, isr)  # these have everything below the high watermark
    staying = tuple(broker for broker in isr if brokers.may_stay(broker))
    able = _without(staying, brokers.impaired)
    if len(able) >= _least(state, min_isr):
        staying = able
    may_lead = _first(state.replicas, able, brokers.active)
    if state.leader in able or (state.leader in staying and may_lead is None):
        return _led(state, state.leader, staying, complete, min_isr)
    leader = _first(state.replicas, staying, brokers.active) if may_lead is None else may_lead
    if leader is not None:
        return _elected(state, leader, staying, complete, min_isr)
    if not staying:
        leader = _first(state.replicas, _without(complete, brokers.impaired), brokers.active)
        if leader is None:
            leader = _first(state.replicas, complete, brokers.active)
        if leader is not None:
            return _elected(state, leader, (leader,), complete, min_isr)
    if state.leader in brokers.stopping and state.leader in isr:
        present = tuple(b for b in isr if brokers.may_stay(b) or b in brokers.stopping)
        return _led(state, state.leader, present, complete, min_isr)
    if not complete:
        leader = _last_known_leader(state, brokers)
        if leader is not None and leader in brokers.active:
            return _elected(state, leader, (leader,), (), min_isr)
    if unclean_allowed and not any(map(brokers.awaits, (*complete, *state.last_known_elr))):
        # A replica with an empty disk is the last choice.
        by_worth = sorted(state.replicas, key=lambda broker: broker in brokers.emptied)
        leader = _first(by_worth, by_worth, brokers.active)
        if leader is not None:
            return _elected(state, leader, (leader,), (), min_isr)
    return _without_new_leader(state, isr, elr, brokers)


def _without_new_leader(
    state: PartitionState, isr: tuple[int, ...], elr: tuple[int, ...], brokers: Brokers
) -> PartitionState:
    """Nobody may lead now: the leader stays the leader that is away, unless it came back incomplete."""
    if state.leader == NO_LEADER or state.leader in brokers.unclean:
        known = _last_known_leader(state, brokers)
        return _changed(
            state,
            leader=NO_LEADER,
            isr=isr,
            elr=elr,
            last_known_elr=(known,) if known is not None else (),
            election=state.leader != NO_LEADER,
        )
    return _changed(state, leader=state.leader, isr=isr, elr=elr, last_known_elr=state.last_known_elr)


def _last_known_leader(state: PartitionState, brokers: Brokers) -> int | None:
    """Who led last, if its log may be taken for the partition's."""
    known = state.last_known_elr[0] if state.last_known_elr else state.leader
    if known == NO_LEADER or (known in brokers.emptied and len(state.replicas) > 1):
        return None
    return known


def is_unclean(old: PartitionState, new: PartitionState, brokers: Brokers) -> bool:
    """Whether the election from one state to the other may have lost records."""
    return (
        new.leader_epoch > old.leader_epoch
        and new.leader != NO_LEADER
        and (new.leader in brokers.unclean or new.leader not in old.isr + old.elr)
    )


def prefer(state: PartitionState, brokers: Brokers, *, min_isr: int) -> PartitionState:
    """The state with the preferred leader, the first replica, if that is in sync and there."""
    preferred = state.replicas[0]
    may_lead = preferred in state.isr and preferred in brokers.active - brokers.impaired
    if preferred == state.leader or not may_lead:
        return state
    return _elected(state, preferred, state.isr, _union(_valid_elr(state, min_isr), state.isr), min_isr)


def without_stale_elr(state: PartitionState, min_isr: int) -> PartitionState:
    """The state under another `min.insync.replicas`: with enough replicas in sync nobody else is eligible."""
    return _changed(
        state,
        leader=state.leader,
        isr=state.isr,
        elr=_valid_elr(state, min_isr),
        last_known_elr=state.last_known_elr,
    )


def with_replicas(state: PartitionState, replicas: tuple[int, ...], *, min_isr: int) -> PartitionState:
    """The state with more replicas, or in another order. New ones are not in sync until the leader says so.

    With more replicas `min.insync.replicas` may count for more. Who was not eligible by the old number of
    replicas must not become so by the new one.
    """
    if replicas == state.replicas:
        return state
    return replace(
        state,
        replicas=replicas,
        elr=_valid_elr(state, min_isr),
        adding=tuple(each for each in replicas if each in state.adding or each not in state.replicas),
        partition_epoch=state.partition_epoch + 1,
    )


@dataclass(frozen=True, slots=True)
class WantedIsr:
    """What a leader asks for in AlterPartition: replicas and their broker epochs.

    The epoch of one that has been in sync and has not fetched from this leader yet is -1.
    """

    sender: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]


def alter(
    state: PartitionState,
    wanted: WantedIsr,
    brokers: Brokers,
    epochs: Mapping[int, int],
    *,
    min_isr: int,
    failed: frozenset[int] = NOBODY,
) -> PartitionState:
    """The state with the in-sync set that its leader asks for. ApiError says why not.

    `epochs` are the broker epochs of those that are registered. A replica that is fenced, about to stop or
    registered under another epoch does not enter the ISR (KIP-841, KIP-903), nor does one that has failed or
    whose disk is impaired: the leader may be the last to learn.
    """
    if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "The sender knows a newer state of the partition.")
    if wanted.leader_epoch < state.leader_epoch:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
    if wanted.sender != state.leader:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The sender is not the leader.")
    if wanted.partition_epoch < state.partition_epoch:
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION)
    isr = tuple(broker for broker, _ in wanted.isr)
    if len(set(isr)) < len(isr) or not set(isr) <= set(state.replicas) or state.leader not in isr:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{list(isr)} cannot be the ISR of replicas {list(state.replicas)}."
        )
    for broker, epoch in wanted.isr:
        # The leader that cannot hand over stays in its ISR while it stops.
        may = broker in brokers.active or (broker == state.leader and broker in brokers.stopping)
        known = epoch == epochs.get(broker) or (epoch == -1 and broker in state.isr)
        unable = broker not in state.isr and (broker in brokers.impaired or broker in failed)
        if not may or not known or unable:
            raise ApiError(ErrorCode.INELIGIBLE_REPLICA)
    return _led(state, state.leader, isr, _union(_valid_elr(state, min_isr), state.isr), min_isr)


def _least(state: PartitionState, min_isr: int) -> int:
    return min(min_isr, len(state.replicas))


def _valid_elr(state: PartitionState, min_isr: int) -> tuple[int, ...]:
    """Nobody when enough are in sync, as after `min.insync.replicas` was lowered: the watermark moves."""
    return () if len(state.isr) >= _least(state, min_isr) else state.elr


def _led(
    state: PartitionState,
    leader: int,
    isr: tuple[int, ...],
    complete: tuple[int, ...],
    min_isr: int,
    *,
    election: bool = False,
) -> PartitionState:
    """A state with a leader. Who is complete and not in sync is eligible while too few are in sync."""
    elr = () if len(isr) >= _least(state, min_isr) else _without(complete, isr)
    return _changed(state, leader=leader, isr=isr, elr=elr, last_known_elr=(), election=election)


def _elected(
    state: PartitionState, leader: int, isr: tuple[int, ...], complete: tuple[int, ...], min_isr: int
) -> PartitionState:
    return _led(state, leader, isr, complete, min_isr, election=True)


def _changed(
    state: PartitionState,
    *,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known_elr: tuple[int, ...],
    election: bool = False,
) -> PartitionState:
    adding = () if set(state.adding) <= set(isr) else state.adding
    new = replace(state, leader=leader, isr=isr, elr=elr, last_known_elr=last_known_elr, adding=adding)
    if new == state and not election:
        return state
    return replace(new, leader_epoch=state.leader_epoch + election, partition_epoch=state.partition_epoch + 1)


def _first(order: Iterable[int], among: Sequence[int], active: frozenset[int]) -> int | None:
    return next((broker for broker in order if broker in among and broker in active), None)


def _without(brokers: tuple[int, ...], others: Iterable[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in others)


def _union(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return first + _without(second, first)
