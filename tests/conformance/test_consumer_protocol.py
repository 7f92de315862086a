"""Groups of `group.protocol=consumer` (KIP-848) with confluent-kafka: every reason for a rebalance, and none.

Runs against Apache Kafka too (`--bootstrap`), except for what needs a broker with settings of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import ottla.testing
from conformance.group_member import Member, Place, await_shared, until

pytestmark = pytest.mark.timeout(240)

Join = Callable[..., Member]


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def join(bootstrap: str, group: str) -> Iterator[Join]:
    """Lets a member join; all of them leave when the test is over."""
    with ExitStack() as members:

        def join(*topics: str, group: str = group, **config: object) -> Member:
            return members.enter_context(Member(bootstrap, group, topics, **config))

        yield join


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def all_of(topic: str, partitions: int) -> set[Place]:
    return {(topic, index) for index in range(partitions)}


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


@pytest.mark.cluster
def test_joining_and_leaving_members_revoke_only_the_necessary_partitions(
    make_topic: Callable[..., str], join: Join
) -> None:
    topic = make_topic(6)
    first = join(topic)
    await_shared([first], all_of(topic, 6))
    second = join(topic)
    await_shared([first, second], all_of(topic, 6))
    assert len(first.revoked) == 3
    kept = second.owned
    third = join(topic)
    await_shared([first, second, third], all_of(topic, 6))
    assert len(second.owned & kept) == 2
    third.close()
    await_shared([first, second], all_of(topic, 6))
    assert len(first.revoked) + len(second.revoked) == 5


def test_more_members_than_partitions_leaves_the_rest_idle(
    make_topic: Callable[..., str], join: Join
) -> None:
    topic = make_topic(2)
    members = [join(topic) for _ in range(4)]
    await_shared(members, all_of(topic, 2))
    assert sorted(len(member.owned) for member in members) == [0, 0, 1, 1]


def test_a_group_reads_many_topics(make_topic: Callable[..., str], join: Join) -> None:
    topics = [make_topic(2) for _ in range(3)]
    members = [join(*topics) for _ in range(2)]
    await_shared(members, {place for topic in topics for place in all_of(topic, 2)})


def test_members_may_subscribe_to_different_topics(make_topic: Callable[..., str], join: Join) -> None:
    one, two = make_topic(2), make_topic(4)
    first, second = join(one), join(one, two)
    until(lambda: first.owned == all_of(one, 2) and second.owned == all_of(two, 4))


def test_groups_do_not_disturb_each_other(make_topic: Callable[..., str], join: Join, group: str) -> None:
    topic = make_topic(4)
    ours, theirs = join(topic), join(topic, group=f"{group}-other")
    await_shared([ours], all_of(topic, 4))
    await_shared([theirs], all_of(topic, 4))
    more = join(topic, group=f"{group}-other")
    await_shared([theirs, more], all_of(topic, 4))
    assert ours.owned == all_of(topic, 4) and not ours.revoked


def test_new_partitions_are_read(make_topic: Callable[..., str], join: Join, admin: AdminClient) -> None:
    topic = make_topic(2)
    members = [join(topic) for _ in range(2)]
    await_shared(members, all_of(topic, 2))
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(30)
    await_shared(members, all_of(topic, 6))


def test_a_regex_subscription_follows_created_and_deleted_topics(
    bootstrap: str, name: str, join: Join, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic(f"{name}-a", 2)])[f"{name}-a"].result(30)
    member = join(f"^{name}-.*")
    await_shared([member], all_of(f"{name}-a", 2))
    admin.create_topics([NewTopic(f"{name}-b", 1)])[f"{name}-b"].result(30)
    await_shared([member], all_of(f"{name}-a", 2) | all_of(f"{name}-b", 1))
    admin.delete_topics([f"{name}-a"])[f"{name}-a"].result(30)
    await_shared([member], all_of(f"{name}-b", 1))


def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(
    make_topic: Callable[..., str], join: Join
) -> None:
    topic = make_topic(4)
    fixed = join(topic, **{"group.instance.id": "i-1"})
    other = join(topic)
    await_shared([fixed, other], all_of(topic, 4))
    had, revoked = fixed.owned, list(other.revoked)
    fixed.close()
    back = join(topic, **{"group.instance.id": "i-1"})
    until(lambda: back.owned == had)
    assert len(other.owned) == 2 and other.revoked == revoked


def test_uncommitted_records_are_read_again(
    bootstrap: str, make_topic: Callable[..., str], join: Join
) -> None:
    topic = make_topic(1)
    produce(bootstrap, topic, 0, 10)
    first = join(topic)
    until(lambda: len(first.received) == 10)
    first.do(lambda consumer: consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False))
    first.close()
    second = join(topic)
    until(lambda: len(second.received) == 6)
    assert [offset for _, _, offset in second.received] == [4, 5, 6, 7, 8, 9]


@pytest.mark.cluster
def test_commits_survive_a_rebalance_and_are_seen_by_the_next_owner(
    bootstrap: str, make_topic: Callable[..., str], join: Join
) -> None:
    topic = make_topic(2)
    produce(bootstrap, topic, 0, 5)
    produce(bootstrap, topic, 1, 5)
    first = join(topic)
    until(lambda: len(first.received) == 10)
    first.do(lambda consumer: consumer.commit(asynchronous=False))
    second = join(topic)
    await_shared([first, second], all_of(topic, 2))
    for partition in (0, 1):
        produce(bootstrap, topic, partition, 1)
    until(lambda: len(first.received) + len(second.received) == 12)
    assert [offset for _, _, offset in second.received] == [5]


def test_a_member_can_seek_backwards(bootstrap: str, make_topic: Callable[..., str], join: Join) -> None:
    topic = make_topic(1)
    produce(bootstrap, topic, 0, 3)
    member = join(topic)
    until(lambda: len(member.received) == 3)
    member.do(lambda consumer: consumer.seek(TopicPartition(topic, 0, 0)))
    until(lambda: len(member.received) == 6)
    assert [offset for _, _, offset in member.received] == [0, 1, 2, 0, 1, 2]


def test_a_new_group_may_start_at_the_end(bootstrap: str, make_topic: Callable[..., str], join: Join) -> None:
    topic = make_topic(1)
    produce(bootstrap, topic, 0, 3)
    member = join(topic, **{"auto.offset.reset": "latest"})
    await_shared([member], all_of(topic, 1))

    def reads() -> bool:
        produce(bootstrap, topic, 0, 1)
        return bool(member.received)

    until(reads)
    assert all(offset >= 3 for _, _, offset in member.received)


@pytest.mark.cluster
def test_administrators_see_the_group(
    make_topic: Callable[..., str], join: Join, admin: AdminClient, group: str
) -> None:
    topic = make_topic(2)
    member = join(topic)
    await_shared([member], all_of(topic, 2))
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert described.state.name == "STABLE" and described.type.name == "CONSUMER"
    (only,) = described.members
    assert {(p.topic, p.partition) for p in only.assignment.topic_partitions} == member.owned
    listed = admin.list_consumer_groups().result(30).valid
    assert group in {each.group_id for each in listed}


def test_a_running_group_changes_from_the_classic_protocol_and_back(
    bootstrap: str, make_topic: Callable[..., str], join: Join, admin: AdminClient, group: str
) -> None:
    topic = make_topic(4)
    produce(bootstrap, topic, 0, 3)
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 300,
    }
    old = join(topic, **classic)
    await_shared([old], all_of(topic, 4))
    new = join(topic)
    await_shared([old, new], all_of(topic, 4))
    assert admin.describe_consumer_groups([group])[group].result(30).type.name == "CONSUMER"
    new.close()
    await_shared([old], all_of(topic, 4))
    again = join(topic, **classic)
    await_shared([old, again], all_of(topic, 4))


def test_a_killed_member_is_replaced() -> None:
    settings = {"group.consumer.session.timeout.ms": 2000, "group.consumer.min.session.timeout.ms": 1000}
    with ottla.testing.broker(topics={"t": 4}, settings=settings) as broker:
        command = [sys.executable, str(Path(__file__).with_name("group_member.py"))]
        killed = subprocess.Popen(
            [*command, broker.bootstrap_servers, "g", "t"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert killed.stdout is not None and killed.stdout.readline() == "ready\n"
            with Member(broker.bootstrap_servers, "g", ["t"]) as member:
                until(lambda: len(member.owned) == 2)
                killed.send_signal(signal.SIGKILL)
                await_shared([member], all_of("t", 4))
        finally:
            killed.kill()
            killed.wait()
            assert killed.stdout is not None
            killed.stdout.close()


def test_a_group_continues_after_a_broker_restart() -> None:
    with ottla.testing.broker(topics={"t": 4}) as broker:
        with ExitStack() as stack:
            members = [stack.enter_context(Member(broker.bootstrap_servers, "g", ["t"])) for _ in range(2)]
            await_shared(members, all_of("t", 4))
            had = [member.owned for member in members]
            broker.kill()
            broker.start()
            produce(broker.bootstrap_servers, "t", 0, 3)
            until(lambda: sum(len(member.received) for member in members) == 3)
            assert [member.owned for member in members] == had
