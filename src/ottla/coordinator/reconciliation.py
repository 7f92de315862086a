"""How a member gets from its present assignment to its target, without two members ever owning a partition.

A group has a target: an assignment for all its members, made for an epoch. Each member moves towards it on
its own, a step per heartbeat:

1. It must first give back the partitions that are not in its target. It is told so and stays in its epoch
   until it says that it no longer owns those partitions. (UNREVOKED)
2. Then it enters the epoch of the target and gets the partitions of its target that are free. One that
   another member has, or is still giving back, is not free. (UNRELEASED while some are not, STABLE when it
   has all.)

Members never stop reading the partitions that they keep. There is no moment when all have to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ottla.coordinator.assignors import Partitions, TopicId
from ottla.coordinator.consumer_member import Member, MemberState, Owned

IsFree = Callable[[TopicId, int], bool]
"""Whether no other member has a partition."""


def reconcile(
    member: Member,
    *,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[TopicId],
    owned: Partitions | None,
    is_free: IsFree,
    subscription_changed: bool = False,
) -> Member:
    """The member after its next step.

    `owned` is what it says that it owns, None if it does not say. The target may be older than the
    subscription: topics that the member no longer subscribes to are left out.
    """
    if member.state is MemberState.UNREVOKED:
        if _still_owns(owned, member.revoking):
            return member
    elif member.has_reached(target_epoch) and not subscription_changed:
        return member

    keeps: dict[TopicId, dict[int, int]] = {}
    gives: dict[TopicId, dict[int, int]] = {}
    for topic, partitions in member.assigned.items():
        wanted: Collection[int] = target.get(topic, frozenset()) if topic in subscribed else ()
        for partition, epoch in partitions.items():
            (keeps if partition in wanted else gives).setdefault(topic, {})[partition] = epoch
    if gives and _still_owns(owned, gives):
        return replace(member, state=MemberState.UNREVOKED, assigned=keeps, revoking=gives)

    complete = True
    for topic, partitions_ in target.items():
        if topic not in subscribed:
            continue
        for partition in sorted(partitions_ - keeps.get(topic, {}).keys()):
            if is_free(topic, partition):
                keeps.setdefault(topic, {})[partition] = target_epoch
            else:
                complete = False
    return replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
        state=MemberState.STABLE if complete else MemberState.UNRELEASED,
        assigned=keeps,
        revoking={},
    )


def _still_owns(owned: Partitions | None, revoked: Owned) -> bool:
    """Whether the member may still read any of these. If it does not say what it owns, it may."""
    return owned is None or any(owned.get(topic, frozenset()) & revoked[topic].keys() for topic in revoked)
