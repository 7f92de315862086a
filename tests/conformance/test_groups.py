"""Consumer groups of the classic protocol, with real clients.

Each promise is run with librdkafka (eager and cooperative), kafka-python, aiokafka and, as far as it can
keep its part, kcat, which is also the member that dies without a word. With `--bootstrap` the same tests run
against Apache Kafka.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conformance.clients import ConfluentClient
from conformance.clients.members import MEMBERS, READERS, KcatMember, Member, Read

DEADLINE = 60.0


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


Joining = Callable[..., Any]


@pytest.fixture(params=MEMBERS, ids=list(MEMBERS))
def kind(request: pytest.FixtureRequest) -> type[Any]:
    """For tests that tell a member to commit or to rewind."""
    return MEMBERS[request.param]


@pytest.fixture(params=READERS, ids=list(READERS))
def anyone(request: pytest.FixtureRequest) -> type[Any]:
    """For all other tests."""
    return READERS[request.param]


@pytest.fixture
def join(bootstrap: str, group: str) -> Iterator[Joining]:
    """Makes members of the test's group; those that are still there at the end leave."""
    members: list[Any] = []

    def joined(cls: type[Any], topics: list[str], **settings: Any) -> Any:
        members.append(cls(bootstrap, settings.pop("group", group), topics, **settings))
        return members[-1]

    yield joined
    # All at once: one that waits for the others to rejoin cannot leave before they do.
    leaving = [threading.Thread(target=leave, args=[member]) for member in members]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join()


def leave(member: Any) -> None:
    if not getattr(member, "has_left", False):
        member.has_left = True
        member.close()


def fill(bootstrap: str, topic: str, partitions: int, each: int, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2})
    for number in range(start, start + each):
        for partition in range(partitions):
            producer.produce(topic, b"%d-%d" % (partition, number), partition=partition)
    assert producer.flush(DEADLINE) == 0


def until(condition: Callable[[], bool], members: list[Member], what: str) -> list[Read]:
    """Poll all members in turns until it is so; what they have read meanwhile."""
    read: list[Read] = []
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            owned = [sorted(member.owned()) for member in members]
            raise AssertionError(f"waited in vain for {what}; the members own {owned}")
        for member in members:
            read += member.poll(0.05)
    return read


def take(member: Member, count: int, others: list[Member] | None = None) -> list[Read]:
    """The next `count` records of a member, at least."""
    read: list[Read] = []
    deadline = time.monotonic() + DEADLINE
    while len(read) < count:
        assert time.monotonic() < deadline, f"read {len(read)} of {count} records"
        read += member.poll(0.1)
        for other in others or ():
            other.poll(0.01)
    return read


def shared(members: list[Member], topics: dict[str, int], least: int = 1) -> Callable[[], bool]:
    """All partitions are owned, each by one member, and each member has some."""
    everything = {(topic, partition) for topic, count in topics.items() for partition in range(count)}

    def condition() -> bool:
        shares = [member.owned() for member in members]
        return (
            set().union(*shares) == everything
            and sum(map(len, shares)) == len(everything)
            and min(map(len, shares)) >= least
        )

    return condition


# -- assignment -------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_members_share_partitions_as_they_come_and_go(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = make_topic(4)
    fill(bootstrap, topic, 4, 10)
    first = join(anyone, [topic], auto_commit=True)
    read = take(first, 40)
    assert sorted(set(read)) == sorted(read), "nothing is read twice"
    assert {(r.partition, r.offset) for r in read} == {(p, o) for p in range(4) for o in range(10)}
    second = join(anyone, [topic], auto_commit=True)
    until(shared([first, second], {topic: 4}, least=2), [first, second], "two shares")
    third = join(anyone, [topic], auto_commit=True)
    until(shared([first, second, third], {topic: 4}), [first, second, third], "three shares")
    leave(second)
    until(shared([first, third], {topic: 4}, least=2), [first, third], "two shares again")
    fill(bootstrap, topic, 4, 5, start=10)
    expected = {(p, o) for p in range(4) for o in range(10, 15)}
    again: set[tuple[int, int]] = set()
    deadline = time.monotonic() + DEADLINE
    while not again >= expected:
        assert time.monotonic() < deadline, f"the members read {sorted(again)}"
        again |= {(r.partition, r.offset) for member in (first, third) for r in member.poll(0.05)}
    assert again == expected


def test_more_members_than_partitions_leaves_the_rest_idle(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    members = [join(anyone, [topic]) for _ in range(2)]
    until(shared(members, {topic: 1}, least=0), members, "an owner")
    assert sorted(len(member.owned()) for member in members) == [0, 1]


def test_when_a_member_dies_the_others_take_over(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = make_topic(2)
    settings = getattr(anyone, "settings", {})
    strategy = settings.get("partition.assignment.strategy", "range,roundrobin")
    dying = join(KcatMember, [topic], strategy=strategy)
    living = join(anyone, [topic])
    until(shared([dying, living], {topic: 2}), [dying, living], "two shares")
    fill(bootstrap, topic, 2, 3)
    assert len(take(dying, 3)) == 3
    dying.kill()
    read = until(shared([living], {topic: 2}), [living], "all partitions")
    while len({(r.partition, r.offset) for r in read}) < 6:
        read += take(living, 1)
    # What the dead one had read and not committed is read again, and nothing else can be in the topic.
    assert {(r.partition, r.offset) for r in read} == {(p, o) for p in range(2) for o in range(3)}


def test_partitions_that_are_added_get_an_owner(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = make_topic(1)
    member = join(anyone, [topic])
    until(shared([member], {topic: 1}), [member], "the first partition")
    ConfluentClient(bootstrap).add_partitions(topic, 3)
    until(shared([member], {topic: 3}), [member], "the new partitions")


def test_a_new_topic_that_matches_a_regex_subscription_is_read(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str], bootstrap: str, name: str
) -> None:
    setup = ConfluentClient(bootstrap)
    setup.create_topic(f"{name}-1")
    member = join(anyone, [f"^{name}-.*"])
    until(shared([member], {f"{name}-1": 1}), [member], "the first topic")
    setup.create_topic(f"{name}-2", 2)
    until(shared([member], {f"{name}-1": 1, f"{name}-2": 2}), [member], "the second topic")
    fill(bootstrap, f"{name}-1", 1, 1)
    take(member, 1)  # kcat ends if the topic goes before it has looked up where to begin
    setup.delete_topic(f"{name}-1")
    until(shared([member], {f"{name}-2": 2}), [member], "the first topic to be gone")


def test_a_group_reads_many_topics_and_groups_do_not_disturb_each_other(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str], bootstrap: str, group: str
) -> None:
    topics = [make_topic(2), make_topic(1)]
    for topic, partitions in zip(topics, (2, 1), strict=True):
        fill(bootstrap, topic, partitions, 4)
    for suffix in ("a", "b"):
        read = take(join(anyone, topics, group=f"{group}-{suffix}"), 12)
        assert len(set(read)) == len(read) == 12


# -- static members ---------------------------------------------------------------------------------------


def test_a_static_member_that_restarts_in_time_causes_no_rebalance(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    first = join(anyone, [topic], instance="first")
    second = join(anyone, [topic], instance="second")
    until(shared([first, second], {topic: 2}), [first, second], "two shares")
    owned, revoked = second.owned(), first.revocations
    leave(second)  # a static member says nothing when it goes
    back = join(anyone, [topic], instance="second")
    until(lambda: back.owned() == owned, [first, back], "the same share")
    assert first.revocations == revoked
    assert shared([first, back], {topic: 2})()


def test_partitions_of_a_static_member_are_reassigned_after_its_session_timeout(
    anyone: type[Any], join: Joining, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    first = join(anyone, [topic], instance="first")
    second = join(anyone, [topic], instance="second")
    until(shared([first, second], {topic: 2}), [first, second], "two shares")
    leave(second)
    until(shared([first], {topic: 2}), [first], "both partitions")


# -- offsets ----------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_the_next_member_continues_from_the_committed_offset(
    kind: type[Any], join: Joining, topic: str, bootstrap: str
) -> None:
    fill(bootstrap, topic, 1, 10)
    first = join(kind, [topic])
    assert len(take(first, 10)) == 10
    first.commit()
    fill(bootstrap, topic, 1, 5, start=10)
    take(first, 5)  # read, but not committed
    leave(first)
    second = join(kind, [topic])
    assert [r.offset for r in take(second, 5)] == list(range(10, 15))


def test_offsets_are_committed_automatically(
    anyone: type[Any], join: Joining, topic: str, bootstrap: str, group: str
) -> None:
    fill(bootstrap, topic, 1, 10)
    member = join(anyone, [topic], auto_commit=True)
    take(member, 10)
    until(lambda: _committed(bootstrap, group, topic) == 10, [member], "a commit")


def test_offsets_can_be_committed_asynchronously(
    kind: type[Any], join: Joining, topic: str, bootstrap: str, group: str
) -> None:
    fill(bootstrap, topic, 1, 10)
    member = join(kind, [topic])
    take(member, 10)
    committed: list[int] = []
    member.commit_later(committed.append)
    until(lambda: bool(committed), [member], "the outcome of the commit")
    assert committed == [10]
    assert _committed(bootstrap, group, topic) == 10


def _committed(bootstrap: str, group: str, topic: str) -> int:
    """As a consumer sees it that is in no group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE)
    finally:
        consumer.close()
    assert found.error is None
    return int(found.offset)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_new_group_begins_at_auto_offset_reset(
    anyone: type[Any], join: Joining, topic: str, bootstrap: str, reset: str
) -> None:
    fill(bootstrap, topic, 1, 3)
    member = join(anyone, [topic], reset=reset)
    read = until(shared([member], {topic: 1}), [member], "the partition")
    numbers = itertools.count(3)
    while not read:  # it is unknown when a reader from the end has found the end
        fill(bootstrap, topic, 1, 1, start=next(numbers))
        read = member.poll(0.3)
    assert (read[0].offset == 0) if reset == "earliest" else (read[0].offset >= 3)


def test_a_consumer_can_rewind(kind: type[Any], join: Joining, topic: str, bootstrap: str) -> None:
    fill(bootstrap, topic, 1, 6)
    member = join(kind, [topic])
    take(member, 6)
    member.commit()
    member.rewind(topic, 0, 2)
    assert [r.offset for r in take(member, 4)] == [2, 3, 4, 5]
