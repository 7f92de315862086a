"""The rebalance history says why a group rebalanced, how long it took and what moved."""

from __future__ import annotations

from ottla.coordinator import rebalance_history as history
from ottla.coordinator.rebalance_history import Move, Rebalance, RebalanceHistory
from ottla.protocol.messages.leave_group import MemberIdentity
from unit.coordinator.simulated import Simulated


def test_the_first_rebalance_lists_joined_members_and_their_partitions() -> None:
    shard = Simulated()
    a, b = shard.stable(2)
    (entry,) = shard.groups.history.of("g")
    assert [cause.what for cause in entry.causes] == [history.JOINED, history.JOINED]
    assert (entry.generation, entry.protocol, entry.leader) == (1, "range", a)
    assert entry.shares == {a: {("t", 0)}, b: {("t", 1)}}
    assert entry.moves == (Move("t", 0, None, a), Move("t", 1, None, b))
    assert (set(entry.joined), entry.left) == ({a, b}, ())
    assert entry.duration_ms == 6000, "it waited for more members"


def test_an_expired_member_is_named_with_the_new_owners_of_its_partitions() -> None:
    shard = Simulated()
    a, b = shard.stable(2)
    shard.scheduler.run(9_000)
    shard.heartbeat(a, 1)
    shard.scheduler.run(2_000)
    shard.join(a)
    shard.sync(a, 2, {a: {0, 1}})
    entry = shard.groups.history.of("g")[0]
    assert [(cause.what, cause.member) for cause in entry.causes] == [(history.SILENT, b)]
    assert entry.moves == (Move("t", 1, b, a),)
    assert entry.left == (b,)
    assert "client" in str(entry.causes[0])


def test_the_reason_given_by_a_leaving_member_is_kept() -> None:
    shard = Simulated()
    (a,) = shard.stable()
    shard.leave(MemberIdentity(member_id=a, reason="the consumer is being closed"))
    entry = shard.groups.history.of("g")[0]
    assert str(entry.causes[0]) == f"a member left: {a} of client client (the consumer is being closed)"
    assert (entry.shares, entry.left) == ({}, (a,))


def test_members_without_partitions_are_idle() -> None:
    shard = Simulated()
    (a, _), (b, _) = shard.new_member(), shard.new_member()
    shard.scheduler.run(10_000)
    shard.sync(a, 1, {a: {0}})
    assert shard.groups.history.of("g")[0].idle == (b,)


def test_assignments_of_other_protocol_types_are_not_decoded() -> None:
    shares = history.decoded_shares([("m", b"\0\0whatever")], is_consumer=False)
    assert shares == {"m": frozenset()}
    assert history.decoded_shares([("m", b"\xff")], is_consumer=True) == {"m": frozenset()}


def test_only_the_last_rebalances_are_kept() -> None:
    kept = RebalanceHistory(kept=3)
    for generation in range(5):
        kept.add(Rebalance("g", generation, (), 0, 0, None, None, {}, (), (), ()))
    assert [entry.generation for entry in kept.of("g")] == [4, 3, 2]
    kept.forget("g")
    assert kept.of("g") == []


def test_rebalances_of_many_partitions_are_forgotten_sooner() -> None:
    places = frozenset(("t", partition) for partition in range(history.MAX_PLACES // 4))
    kept = RebalanceHistory()
    for generation in range(10):
        kept.add(
            Rebalance(
                group_id="g",
                generation=generation,
                causes=(),
                began_ms=0,
                ended_ms=0,
                protocol=None,
                leader=None,
                shares={"member": places},
                moves=(),
                joined=(),
                left=(),
            )
        )
    assert [entry.generation for entry in kept.of("g")] == [9, 8, 7, 6]
