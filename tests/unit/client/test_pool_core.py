"""The core of a pool under random work, failures, rebalances and crashes: order, commits, re-delivery."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ottla.client.pool_core import KeyOrderedWork, Work
from ottla.client.records import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
KEYS = st.sampled_from([None, b"a", b"b", b"c"])
LIMIT = 12


class Broker:
    """One partition: its records as (offset, key), where the group has committed, where the reader is."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes | None]] = []
        self.committed = 0
        self.position = 0
        self.finished: set[int] = set()
        """Offsets whose work was done at least once, by whoever owned the partition."""

    def append(self, key: bytes | None, gap: int) -> None:
        last = self.records[-1][0] if self.records else -1
        self.records.append((last + 1 + gap, key))  # compaction and transactions leave gaps

    def next(self) -> tuple[int, bytes | None] | None:
        return next((each for each in self.records if each[0] >= self.position), None)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.brokers = {name: Broker() for name in PARTITIONS}
        self.now = 0.0
        self.core = KeyOrderedWork(LIMIT)
        self.owned = set(PARTITIONS)
        self.running: list[tuple[TopicPartition, Work]] = []
        self.zombies: list[Work] = []
        """Work that runs on for a partition that was dropped."""

    @rule(name=st.sampled_from(PARTITIONS), key=KEYS, gap=st.sampled_from([0, 0, 0, 1, 5]))
    def produce(self, name: TopicPartition, key: bytes | None, gap: int) -> None:
        self.brokers[name].append(key, gap)

    @rule(name=st.sampled_from(PARTITIONS), many=st.integers(1, 5))
    def read(self, name: TopicPartition, many: int) -> None:
        if name not in self.owned or name in self.core.pauses(self.owned):
            return
        for _ in range(min(many, self.core.free)):
            record = self.brokers[name].next()
            if record is None:
                return
            offset, key = record
            self.core.add(name, offset, key, (name, key))
            self.brokers[name].position = offset + 1

    @rule()
    def take(self) -> None:
        work = self.core.take(self.now)
        if work is None:
            return
        name, key = work.item
        assert name in self.owned, "a record of a partition that is not ours"
        if key is not None:
            same = [other for other in self.running if other[1].item == work.item]
            assert not same, "two records of a key at a time"
            earlier = {
                offset
                for offset, other in self.brokers[name].records
                if other == key and self.brokers[name].committed <= offset < work.offset
            }
            assert earlier <= self.brokers[name].finished, "before an earlier record of its key"
        self.running.append((name, work))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        name, work = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.core.done(work)
        self.brokers[name].finished.add(work.offset)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pause=st.integers(0, 3))
    def fail(self, data: st.DataObject, pause: int) -> None:
        _, work = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.core.again(work, self.now + pause)

    @precondition(lambda self: self.zombies)
    @rule(fails=st.booleans())
    def a_zombie_ends(self, fails: bool) -> None:
        work = self.zombies.pop()
        assert work.lost
        if fails:
            self.core.again(work, self.now)
        else:
            self.core.done(work)

    @rule()
    def time_passes(self) -> None:
        self.now += 1

    @rule()
    def commit(self) -> None:
        for name, offset in self.core.positions().items():
            assert name in self.owned, "a commit for a partition that is not ours"
            assert offset >= self.brokers[name].committed, "a commit that goes back"
            self.brokers[name].committed = offset

    @rule(name=st.sampled_from(PARTITIONS), lost=st.booleans())
    def revoke(self, name: TopicPartition, lost: bool) -> None:
        if name not in self.owned:
            return
        if not lost:
            self.core.stop([name])
            ours = [work for other, work in self.running if other == name]
            assert self.core.running([name]) == len(ours)
            for work in ours[::2]:  # some end in time, others do not
                self.running.remove((name, work))
                self.core.done(work)
                self.brokers[name].finished.add(work.offset)
            self.brokers[name].committed = self.core.positions().get(name, self.brokers[name].committed)
        self.core.drop([name])
        self.zombies += [work for other, work in self.running if other == name]
        self.running = [each for each in self.running if each[0] != name]
        self.owned.discard(name)

    @rule(name=st.sampled_from(PARTITIONS))
    def assign(self, name: TopicPartition) -> None:
        if name not in self.owned:
            self.owned.add(name)
            self.brokers[name].position = self.brokers[name].committed

    @rule()
    def crash(self) -> None:
        self.core = KeyOrderedWork(LIMIT)
        self.running, self.zombies, self.owned = [], [], set(PARTITIONS)
        for broker in self.brokers.values():
            broker.position = broker.committed

    @invariant()
    def nothing_is_lost(self) -> None:
        for broker in self.brokers.values():
            below = {offset for offset, _ in broker.records if offset < broker.committed}
            assert below <= broker.finished, "committed past a record that was never done"

    @invariant()
    def the_bound_is_kept(self) -> None:
        assert 0 <= self.core.held <= LIMIT
        assert self.core.running(PARTITIONS) == len(self.running)

    def teardown(self) -> None:
        """Whatever happened: from here on everything gets done, and committed to the end."""
        self.owned = set(PARTITIONS)
        self.crash()
        while True:
            for name in PARTITIONS:
                self.read(name, LIMIT)
            self.now += 10
            work = self.core.take(self.now)
            if work is None:
                assert all(broker.next() is None for broker in self.brokers.values()), "it is stuck"
                break
            self.core.done(work)
            self.brokers[work.item[0]].finished.add(work.offset)
            self.commit()
        for broker in self.brokers.values():
            assert {offset for offset, _ in broker.records} <= broker.finished
            assert not broker.records or broker.committed == broker.records[-1][0] + 1


def test_order_commits_and_re_delivery_under_any_sequence_of_events() -> None:
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],  # of a machine that is busy with other tests
        ),
    )


def test_partitions_with_a_slow_key_leave_space_to_others() -> None:
    core = KeyOrderedWork(100)
    for offset in range(50):
        core.add(PARTITIONS[0], offset, b"slow", None)
    assert core.pauses(PARTITIONS) == {PARTITIONS[0]}
    for offset in range(50):
        core.add(PARTITIONS[1], offset, b"%d" % offset, None)
    assert core.pauses(PARTITIONS) == set(PARTITIONS), "the limit is reached"
    first = core.take(0.0)
    assert first is not None
    for _ in range(50):
        work = core.take(0.0)
        assert work is not None
        core.done(work)
    assert core.pauses(PARTITIONS) == {PARTITIONS[0]}, "the slow key is still in the way of its own partition"


def test_a_partition_s_share_leaves_space_to_others_and_is_all_when_it_is_alone() -> None:
    core = KeyOrderedWork(100)
    assert [core.share(partitions) for partitions in (0, 1, 2, 8, 1000)] == [100, 100, 50, 25, 1]


def test_the_order_of_a_partition_and_no_order() -> None:
    in_order, free = KeyOrderedWork(10, "partition"), KeyOrderedWork(10, "none")
    for core in (in_order, free):
        for offset in range(2):
            core.add(PARTITIONS[0], offset, b"k", None)
        assert core.take(0.0) is not None
    assert in_order.take(0.0) is None
    assert free.take(0.0) is not None


def test_records_must_come_in_order() -> None:
    core = KeyOrderedWork(10)
    core.add(PARTITIONS[0], 5, None, None)
    with pytest.raises(ValueError, match="up to 6"):
        core.add(PARTITIONS[0], 5, None, None)


def test_a_record_that_failed_waits_for_its_time() -> None:
    core = KeyOrderedWork(10)
    core.add(PARTITIONS[0], 0, b"k", None)
    core.add(PARTITIONS[0], 1, b"k", None)
    work = core.take(0.0)
    assert work is not None
    core.again(work, 5.0)
    assert core.take(4.9) is None
    assert core.next_due() == 5.0
    assert core.take(5.0) is work
    assert work.attempts == 2
    core.give_up(work)
    assert core.take(100.0) is None
    assert core.positions() == {}
