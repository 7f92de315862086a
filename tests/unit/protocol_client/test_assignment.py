"""Every partition of a group is assigned to one member that is subscribed to its topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.handlers.explain import idle_reason
from ottla.protocol_client.assignment import ASSIGNORS, range_shares, roundrobin_shares

TOPICS = ("a", "b", "c")


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(
    subscriptions=st.dictionaries(
        st.text("mnop", min_size=1, max_size=3), st.lists(st.sampled_from(TOPICS), unique=True), min_size=1
    ),
    partitions=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9)),
)
def test_each_partition_is_assigned_to_one_subscribed_member(
    name: str, subscriptions: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    shares = ASSIGNORS[name](subscriptions, partitions)
    assert shares.keys() == subscriptions.keys()
    given_out = [(t, p) for share in shares.values() for t, numbers in share.items() for p in numbers]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_out) == [(t, p) for t in sorted(wanted) for p in range(partitions.get(t, 0))]
    assert all(topic in subscriptions[member] for member, share in shares.items() for topic in share)


def test_range_gives_the_first_members_the_longer_pieces() -> None:
    shares = range_shares({"m1": ["t"], "m2": ["t"], "m3": ["t"]}, {"t": 7})
    assert shares == {"m1": {"t": [0, 1, 2]}, "m2": {"t": [3, 4]}, "m3": {"t": [5, 6]}}


def test_roundrobin_assigns_partitions_across_topics() -> None:
    shares = roundrobin_shares({"m1": ["a", "b"], "m2": ["a", "b"]}, {"a": 3, "b": 1})
    assert shares == {"m1": {"a": [0, 2]}, "m2": {"a": [1], "b": [0]}}


def test_the_reason_why_a_member_is_idle_is_found() -> None:
    assert idle_reason(3, 2).startswith("3 members share 2 partitions;")
    assert "no partitions to share" in idle_reason(1, 0)
    assert "does not subscribe" in idle_reason(2, 4)
