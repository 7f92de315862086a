"""Assignors give every partition to one subscriber, evenly, and move no more than they must."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.assignors import ASSIGNORS, Partitions, Subscriber, uniform

TOPICS = [bytes([number]) * 16 for number in range(5)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), max_size=5)
wishes = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.frozensets(st.sampled_from(TOPICS)),
    min_size=1,
    max_size=8,
)


def members_of(
    wanted: Mapping[str, frozenset[bytes]],
    topics: Mapping[bytes, int],
    previous: Mapping[str, Partitions] | None = None,
) -> dict[str, Subscriber]:
    return {
        name: Subscriber(subscribed.intersection(topics), previous=(previous or {}).get(name, {}))
        for name, subscribed in wanted.items()
    }


def pairs(partitions: Partitions) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


def load(partitions: Partitions) -> int:
    return len(pairs(partitions))


@given(st.sampled_from(sorted(ASSIGNORS)), wishes, counts)
def test_every_subscribed_partition_has_exactly_one_subscribed_owner(
    name: str, wanted: dict[str, frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    members = members_of(wanted, topics)
    assignment = ASSIGNORS[name](members, topics)
    assert assignment.keys() == members.keys()
    given_out = [pair for partitions in assignment.values() for pair in pairs(partitions)]
    wanted_topics = {topic for subscriber in members.values() for topic in subscriber.topics}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == {(topic, index) for topic in wanted_topics for index in range(topics[topic])}
    for member, partitions in assignment.items():
        assert partitions.keys() <= members[member].topics


@given(st.sets(st.text("abc", min_size=1, max_size=3), min_size=1), counts)
def test_members_with_the_same_subscription_differ_by_one_at_most(
    names: set[str], topics: dict[bytes, int]
) -> None:
    wanted = {name: frozenset(topics) for name in names}
    loads = [load(each) for each in uniform(members_of(wanted, topics), topics).values()]
    assert max(loads) - min(loads) <= 1


@given(wishes, counts)
def test_no_chain_of_moves_makes_the_assignment_more_even(
    wanted: dict[str, frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    members = members_of(wanted, topics)
    assignment = uniform(members, topics)
    for start in members:
        reached, queue = {start}, [start]
        while queue:
            for topic in assignment[queue.pop()]:
                more = {m for m in members if topic in members[m].topics} - reached
                reached |= more
                queue.extend(more)
        assert all(load(assignment[start]) - load(assignment[other]) <= 1 for other in reached)


@given(wishes, counts)
def test_the_assignment_is_stable_without_changes(
    wanted: dict[str, frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    first = uniform(members_of(wanted, topics), topics)
    assert uniform(members_of(wanted, topics, first), topics) == first


@given(st.integers(1, 8), counts)
def test_a_new_member_causes_no_moves_between_the_other_members(size: int, topics: dict[bytes, int]) -> None:
    wanted = {f"m{number}": frozenset(topics) for number in range(size)}
    first = uniform(members_of(wanted, topics), topics)
    second = uniform(members_of({**wanted, "new": frozenset(topics)}, topics, first), topics)
    for member in wanted:
        assert pairs(second[member]) <= pairs(first[member])


@given(st.integers(2, 8), counts)
def test_remaining_members_keep_their_partitions_when_a_member_leaves(
    size: int, topics: dict[bytes, int]
) -> None:
    wanted = {f"m{number}": frozenset(topics) for number in range(size)}
    first = uniform(members_of(wanted, topics), topics)
    del wanted["m0"]
    second = uniform(members_of(wanted, topics, first), topics)
    for member in wanted:
        assert pairs(first[member]) <= pairs(second[member])
