"""Which nodes a group has in the registry, and how they get from one state to the next."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from ottla.broker.group_projection import (
    Claim,
    Present,
    Wanted,
    apply,
    changes,
    claimed_over,
    group_of,
    group_path,
    is_ephemeral,
    nodes_of,
    present_from,
    snapshot_of,
)
from ottla.cluster.registry import MAX_NODE_BYTES, Create, Delete, Node, Set, parent_of
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_members import ClassicMembers, Member
from ottla.coordinator.classic_phases import Phase
from ottla.coordinator.group import GroupSettings
from ottla.coordinator.offsets import Committed
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    write_assignment,
    write_subscription,
)
from unit.coordinator.consumer_world import Client, World, places

PATH = "/consumers/g"
CLAIM = Claim(coordinator=2, topic_id="T", partition=7, leader_epoch=5)


def no_topic(topic_id: bytes) -> None:
    return None


def classic_member(name: str, topics: list[str], owned: dict[str, list[int]]) -> Member:
    partitions = [TopicPartition(topic=topic, partitions=found) for topic, found in owned.items()]
    return Member(
        member_id=name,
        instance_id=None,
        client_id=f"client of {name}",
        client_host="/10.0.0.1",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=(("range", write_subscription(ConsumerProtocolSubscription(topics=topics))),),
        assignment=write_assignment(ConsumerProtocolAssignment(assigned_partitions=partitions)),
    )


def classic_group(
    *members: Member, phase: Phase = Phase.STABLE, protocol_type: str = "consumer"
) -> ClassicGroup:
    group = ClassicGroup("g", GroupSettings(), ClassicMembers(members))
    group.phase, group.protocol, group.protocol_type = phase, "range", protocol_type
    return group


def shown(group: ClassicGroup, offsets: dict[str, dict[int, Committed]] | None = None) -> dict[str, Wanted]:
    return dict(nodes_of(PATH, snapshot_of(group, offsets or {}), no_topic))


def test_a_classic_group_is_shown_with_members_owners_and_offsets() -> None:
    a = classic_member("a", ["t", "u"], {"t": [0, 1]})
    b = classic_member("b", ["t"], {"t": [2]})
    nodes = shown(classic_group(a, b), {"t": {0: Committed(17), 2: Committed(0)}})
    assert json.loads(nodes[f"{PATH}/ids/a"].data) == {
        "version": 1,
        "subscription": {"t": 1, "u": 1},
        "pattern": "static",
        "client_id": "client of a",
        "host": "/10.0.0.1",
    }
    assert {path[len(PATH) :]: node for path, node in nodes.items() if "/ids/" not in path} == {
        "/ids": Wanted(),
        "/owners": Wanted(),
        "/owners/t": Wanted(),
        "/owners/t/0": Wanted(b"a", True),
        "/owners/t/1": Wanted(b"a", True),
        "/owners/t/2": Wanted(b"b", True),
        "/offsets": Wanted(),
        "/offsets/t": Wanted(),
        "/offsets/t/0": Wanted(b"17"),
        "/offsets/t/2": Wanted(b"0"),
    }


@pytest.mark.parametrize(
    ("phase", "protocol_type"), [(Phase.PREPARING, "consumer"), (Phase.STABLE, "connect")]
)
def test_owners_are_shown_only_of_consumers_in_a_stable_group(phase: Phase, protocol_type: str) -> None:
    group = classic_group(classic_member("a", ["t"], {"t": [0]}), phase=phase, protocol_type=protocol_type)
    nodes = shown(group)
    assert f"{PATH}/ids/a" in nodes and f"{PATH}/owners/t" not in nodes


def test_what_a_member_sent_may_be_nonsense_or_huge() -> None:
    nonsense = replace(classic_member("a", [], {}), protocols=(("range", b"\xff"),), assignment=b"\x00")
    huge = classic_member("b", ["t" * 200 for _ in range(5000)], {"t": list(range(100_000))})
    nodes = shown(classic_group(nonsense, huge))
    assert json.loads(nodes[f"{PATH}/ids/a"].data)["subscription"] == {}
    assert all(len(node.data) <= MAX_NODE_BYTES for node in nodes.values())
    assert not [path for path in nodes if path.startswith(f"{PATH}/owners/")]


def test_a_partition_belongs_to_its_old_owner_until_it_is_given_back() -> None:
    world = World()
    world.topic("t", 2)
    a = Client(world, "a", "t")
    b = Client(world, "b", "t")
    told = places(world.beat("a", a.epoch))
    assert told is not None and len(told) == 1, "it has been told to give one back, and has not yet"

    def owners() -> dict[str, bytes]:
        names = {topic.id: topic.name for topic in world.image.topics.values()}
        nodes = nodes_of(PATH, snapshot_of(world.group, {}), names.get)
        return {path: node.data for path, node in nodes if "/owners/t/" in path}

    assert owners() == {f"{PATH}/owners/t/0": b"a", f"{PATH}/owners/t/1": b"a"}
    world.beat("a", a.epoch, owned=told)
    b.beat()
    assert sorted(owners().values()) == [b"a", b"b"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "%2E", "a b", "<default>", "x" * 300])
def test_any_group_id_is_one_node_and_can_be_read_back(name: str) -> None:
    node = group_path(name).removeprefix("/consumers/")
    assert "/" not in node and node not in ("", ".", "..")
    assert group_of(node) == name


def test_a_claim_yields_only_to_a_later_epoch_of_the_same_log() -> None:
    def by(**other: object) -> Node:
        fields = {"coordinator": 1, "topic_id": "T", "partition": 7, "leader_epoch": 5} | other
        return Node(Claim(**fields).data, 3, 1)  # type: ignore[arg-type]

    assert CLAIM.yields_to(by(leader_epoch=6))
    assert not CLAIM.yields_to(by(leader_epoch=5))
    assert not CLAIM.yields_to(by(leader_epoch=6, topic_id="another one"))
    assert not CLAIM.yields_to(by(leader_epoch=6, partition=8))
    assert not CLAIM.yields_to(Node(b"", 3, 1))
    assert claimed_over(by(), PATH, CLAIM) == (Set(PATH, CLAIM.data, 3), 4)
    assert claimed_over(None, PATH, CLAIM) == (Create(PATH, CLAIM.data), 0)


def test_nodes_of_other_sessions_are_made_anew() -> None:
    nodes = {
        f"{PATH}/ids": Node(b"", 0, 1),
        f"{PATH}/ids/a": Node(b"x", 0, 2, owner=8),
        f"{PATH}/ids/b": Node(b"y", 0, 2, owner=9),
    }
    present = present_from(nodes, session=9)
    wanted = {
        f"{PATH}/ids": Wanted(),
        f"{PATH}/ids/a": Wanted(b"x", True),
        f"{PATH}/ids/b": Wanted(b"y", True),
    }
    assert list(changes(present, wanted)) == [
        Delete(f"{PATH}/ids/a"),
        Create(f"{PATH}/ids/a", b"x", ephemeral=True),
    ]


def test_only_members_and_owners_go_with_the_session() -> None:
    group = classic_group(classic_member("a", ["t"], {"t": [0]}))
    for path, node in shown(group, {"t": {0: Committed(1)}}).items():
        assert is_ephemeral(PATH, path) == node.ephemeral


@pytest.mark.parametrize("seed", range(20))
def test_changes_lead_from_any_state_to_any_other_in_an_order_that_a_registry_takes(seed: int) -> None:
    rng = Random(seed)

    def state() -> dict[str, Wanted]:
        members = [
            classic_member(name, ["t"], {rng.choice("tuv"): rng.sample(range(9), 3)})
            for name in rng.sample("abcde", rng.randrange(6))
        ]
        offsets = {
            topic: {partition: Committed(rng.randrange(3)) for partition in rng.sample(range(9), 4)}
            for topic in rng.sample("tuv", rng.randrange(4))
        }
        return shown(classic_group(*members), offsets)

    present: Present = {}
    for wanted in [state() for _ in range(6)] + [{}]:
        for path in rng.sample(sorted(present), len(present) // 4):
            present[path] = None if is_ephemeral(PATH, path) else present[path]
        tree = set(present) | {PATH}
        for operation in changes(present.copy(), wanted):
            if isinstance(operation, Create):
                assert parent_of(operation.path) in tree and operation.path not in tree
                tree.add(operation.path)
            else:
                assert operation.path in tree
            if isinstance(operation, Delete):
                assert not any(path.startswith(f"{operation.path}/") for path in tree)
                tree.remove(operation.path)
            apply(present, operation)
        assert present == {path: node.data for path, node in wanted.items()}
