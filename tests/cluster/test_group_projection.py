"""Groups shown in the registry by their coordinators (`group.registry.projection`), on both back ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.brokers import PATIENCE, Cluster
from ottla.broker import group_projector
from ottla.broker.broker import Broker
from ottla.broker.group_projection import Claim, group_path
from ottla.clock import SystemClock
from ottla.cluster import layout
from ottla.cluster.registry import Create, Delete, Node, Registry, Set, Unavailable
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.cluster.topic_ids import id_text
from ottla.cluster.zookeeper_registry import ZooKeeperRegistry
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    write_assignment,
    write_subscription,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from zookeeper_server import SESSION_SECONDS, shared_server

NEVER_MIND = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_projector, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(group_projector, "_RETRY_SECONDS", 0.1)


class Shown:
    """A cluster whose groups are shown, and a session of the test's own in its registry."""

    def __init__(self, cluster: Cluster, registry: Registry) -> None:
        self.cluster = cluster
        self.registry = registry

    async def nodes(self, group: str) -> dict[str, Node]:
        """What is shown of a group, by the path behind its name; '' is its own node."""
        path = group_path(group)
        found = {path: await self.registry.find(path), **await self.registry.subtree(path)}
        return {name[len(path) :]: node for name, node in found.items() if node is not None}

    async def until(self, group: str, condition: Callable[[dict[str, Node]], object]) -> dict[str, Node]:
        nodes: dict[str, Node] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(nodes := await self.nodes(group)):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{group!r} is shown as {nodes}") from None
        return nodes

    # -- clients ------------------------------------------------------------------------------------------

    async def coordinator(self) -> int:
        """Of all groups, since there is one partition of offsets."""

        async def find() -> Any:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            return (await self.cluster.call(next(iter(self.cluster.brokers)), request)).coordinators[0]

        found = await retried(find, lambda answer: answer.error_code)
        return int(found.node_id)

    def broker(self, node: int) -> Broker:
        return self.cluster.brokers[node]

    async def ask(self, request: Any, version: int, code: Callable[[Any], int]) -> Any:
        async def call() -> Any:
            return await self.cluster.call(await self.coordinator(), request, version)

        return await retried(call, code)

    async def commit(self, group: str, offsets: dict[int, int], member: str = "") -> None:
        """By the one member of the group, in its first generation, or by a client that is none."""
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in offsets.items()
        ]
        topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=1 if member else -1,
            topics=topics,
        )
        await self.ask(request, 8, lambda answer: answer.topics[0].partitions[0].error_code)

    async def join(self, group: str, *partitions: int) -> str:
        """A classic consumer that assigns itself these partitions; its member id."""
        metadata = write_subscription(ConsumerProtocolSubscription(topics=["t"]))
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        joined = await self.ask(join, 3, lambda answer: answer.error_code)
        owned = [TopicPartition(topic="t", partitions=list(partitions))]
        assignment = write_assignment(ConsumerProtocolAssignment(assigned_partitions=owned))
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)],
        )
        await self.ask(sync, 3, lambda answer: answer.error_code)
        return str(joined.member_id)

    async def leave(self, group: str, member: str) -> None:
        request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)])
        await self.ask(request, 5, lambda answer: answer.error_code)

    async def delete(self, group: str) -> None:
        request = DeleteGroupsRequest(groups_names=[group])
        await self.ask(request, 2, lambda answer: answer.results[0].error_code)

    async def set_projection(self, value: str) -> None:
        resource = AlterConfigsResource(
            resource_type=4,
            resource_name="",
            configs=[AlterableConfig(name="group.registry.projection", config_operation=0, value=value)],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = await self.cluster.call(next(iter(self.cluster.brokers)), request)
        assert not answer.responses[0].error_code, answer


async def retried(call: Callable[[], Awaitable[Any]], code: Callable[[Any], int]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while code(answer := await call()) in NEVER_MIND:
            await asyncio.sleep(0.02)
    assert not code(answer), answer
    return answer


@pytest.fixture(params=["sqlite", "zookeeper"])
def make_registry(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Registry]:
    if request.param == "sqlite":
        return lambda: SqliteRegistry(SqliteStore(tmp_path / "shared.sqlite", durable=False), SystemClock())
    hosts = f"{shared_server().address}/{uuid.uuid4().hex}"
    return lambda: ZooKeeperRegistry(hosts, clock=SystemClock(), session_timeout=SESSION_SECONDS)


@asynccontextmanager
async def showing(
    folder: Path, make_registry: Callable[[], Registry], brokers: int = 1, projection: str = "true"
) -> AsyncIterator[Shown]:
    settings = {"offsets.topic.replication.factor": brokers, "group.registry.projection": projection}
    async with Cluster(folder, registry=make_registry, settings=SETTINGS | settings) as cluster:
        await cluster.start(*range(1, brokers + 1))
        registry = make_registry()
        await registry.open()
        try:
            await cluster.create_topic(1, "t", partitions=3)
            yield Shown(cluster, registry)
        finally:
            await registry.close()


def is_shown_by(broker: int, sessions: set[int], nodes: dict[str, Node], member: str) -> bool:
    """Whether a group whose member owns partition 1 is shown, with nodes of these sessions only.

    What `Shown.nodes` returns was not read in one step.
    """
    return (
        {"", f"/ids/{member}", "/owners/t/1"} <= set(nodes)
        and f'"coordinator":{broker}'.encode() in nodes[""].data
        and {node.owner for node in nodes.values()} - {0} <= sessions
    )


def data_of(nodes: dict[str, Node], folder: str) -> dict[str, bytes]:
    return {path: node.data for path, node in nodes.items() if path.startswith(f"/{folder}/t/")}


async def test_a_group_is_shown_from_its_first_member_to_its_deletion(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        member = await shown.join("g", 0, 2)
        await shown.commit("simple", {1: 5})
        nodes = await shown.until("g", lambda nodes: "/owners/t/2" in nodes)
        session = shown.broker(1)._membership.registry.session_id
        assert data_of(nodes, "owners") == {"/owners/t/0": member.encode(), "/owners/t/2": member.encode()}
        held = {path for path, node in nodes.items() if node.owner}
        assert held == {f"/ids/{member}", "/owners/t/0", "/owners/t/2"}
        assert {nodes[path].owner for path in held} == {session}
        nodes = await shown.until("simple", lambda nodes: "/offsets/t/1" in nodes)
        assert data_of(nodes, "offsets") == {"/offsets/t/1": b"5"}

        await shown.commit("simple", {1: 6, 0: 1})
        nodes = await shown.until("simple", lambda nodes: len(data_of(nodes, "offsets")) == 2)
        assert data_of(nodes, "offsets") == {"/offsets/t/0": b"1", "/offsets/t/1": b"6"}
        await shown.leave("g", member)
        await shown.until("g", lambda nodes: not held & set(nodes) and "/ids" in nodes)
        await shown.delete("g")
        await shown.until("g", lambda nodes: not nodes)
        assert await shown.nodes("simple")


async def test_a_member_of_the_consumer_protocol_is_shown_with_its_partitions(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        await shown.ask(heartbeat, 1, lambda answer: answer.error_code)
        nodes = await shown.until("g", lambda nodes: len(data_of(nodes, "owners")) == 3)
        assert set(data_of(nodes, "owners").values()) == {b"m"}
        assert nodes["/ids/m"].owner


async def test_a_group_with_any_name_is_shown(tmp_path: Path, make_registry: Callable[[], Registry]) -> None:
    names = [".", "..", "a/b", "ünï %", "zookeeper"]
    async with showing(tmp_path, make_registry) as shown:
        for name in names:
            await shown.commit(name, {0: 1})
        for name in names:
            await shown.until(name, lambda nodes: "/offsets/t/0" in nodes)


async def test_the_next_coordinator_shows_the_groups_of_one_that_stopped(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry, brokers=2) as shown:
        member = await shown.join("g", 1)
        await shown.commit("g", {1: 5}, member)
        await shown.until("g", lambda nodes: "/owners/t/1" in nodes and "/offsets/t/1" in nodes)
        first = await shown.coordinator()
        await shown.cluster.stop(first)
        (second,) = shown.cluster.brokers
        session = shown.broker(second)._membership.registry.session_id
        nodes = await shown.until("g", lambda nodes: is_shown_by(second, {session}, nodes, member))
        assert nodes["/offsets/t/1"].data == b"5"


async def test_the_next_coordinator_replaces_what_one_that_crashed_has_left(tmp_path: Path) -> None:
    """The nodes of the dead session may still be there when the next coordinator begins."""

    def make() -> Registry:
        return SqliteRegistry(SqliteStore(tmp_path / "shared.sqlite", durable=False), SystemClock())

    async with showing(tmp_path, make, brokers=3) as shown:
        member = await shown.join("g", 1)
        await shown.until("g", lambda nodes: "/owners/t/1" in nodes)
        await shown.cluster.crash(await shown.coordinator())
        sessions = {
            node: broker._membership.registry.session_id for node, broker in shown.cluster.brokers.items()
        }
        await shown.until(
            "g",
            lambda nodes: any(
                is_shown_by(node, {session}, nodes, member) for node, session in sessions.items()
            ),
        )


async def test_a_coordinator_that_hands_over_and_lives_on_leaves_the_groups_to_the_next(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry, brokers=2) as shown:
        preferred = await shown.coordinator()
        (other,) = set(shown.cluster.brokers) - {preferred}
        member = await shown.join("g", 1)
        await shown.cluster.stop(preferred)
        await shown.cluster.start(preferred)
        sessions = {node: shown.broker(node)._membership.registry.session_id for node in (preferred, other)}
        await shown.until(
            "g", lambda nodes: f"/ids/{member}" in nodes and nodes[f"/ids/{member}"].owner == sessions[other]
        )
        partition = ElectTopic(topic=OFFSETS_TOPIC, partitions=[0])

        def is_in_sync() -> bool:
            return len(shown.cluster.image.topics[OFFSETS_TOPIC].partitions[0].isr) == 2

        async with asyncio.timeout(PATIENCE):
            while not is_in_sync():
                await asyncio.sleep(0.02)
        await shown.cluster.call(other, ElectLeadersRequest(election_type=0, topic_partitions=[partition]))
        await shown.until("g", lambda nodes: is_shown_by(preferred, {sessions[preferred]}, nodes, member))


async def test_a_group_that_a_later_coordinator_shows_is_left_alone(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        await shown.commit("g", {0: 1})
        await shown.until("g", lambda nodes: "/offsets/t/0" in nodes)
        topic = shown.broker(1).image.topics[OFFSETS_TOPIC]
        later = Claim(9, id_text(topic.id), 0, topic.partitions[0].leader_epoch + 1)
        await shown.registry.commit([Set(group_path("g"), later.data)])
        before = await shown.nodes("g")
        await shown.commit("g", {0: 2})
        await shown.commit("g", {1: 2})
        await shown.commit("h", {0: 3})  # is written after "g" was tried
        await shown.until("h", lambda nodes: "/offsets/t/0" in nodes)
        assert await shown.nodes("g") == before


async def test_nodes_that_somebody_changed_are_written_again_with_the_next_change(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        await shown.commit("g", {0: 1})
        await shown.until("g", lambda nodes: "/offsets/t/0" in nodes)
        path = group_path("g")
        await shown.registry.commit(
            [Delete(f"{path}/offsets/t/0"), Delete(f"{path}/offsets/t"), Create(f"{path}/offsets/x")]
        )
        await shown.commit("g", {0: 2, 1: 7})
        nodes = await shown.until("g", lambda nodes: len(data_of(nodes, "offsets")) == 2)
        assert data_of(nodes, "offsets") == {"/offsets/t/0": b"2", "/offsets/t/1": b"7"}
        assert "/offsets/x" not in nodes


async def test_groups_are_removed_and_shown_again_when_the_setting_changes(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        await shown.commit("g", {0: 1})
        await shown.until("g", lambda nodes: "/offsets/t/0" in nodes)
        await shown.set_projection("false")
        await shown.until("g", lambda nodes: not nodes)
        await shown.commit("g", {0: 2})
        await shown.set_projection("true")
        nodes = await shown.until("g", lambda nodes: "/offsets/t/0" in nodes)
        assert nodes["/offsets/t/0"].data == b"2"


async def test_groups_that_are_gone_are_removed_by_the_next_start(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        await shown.commit("g", {0: 1})
        await shown.until("g", lambda nodes: "/offsets/t/0" in nodes)
        await shown.broker(1)._coordinators._projector.stop()
        await shown.delete("g")
        await shown.cluster.stop(1)
        assert await shown.nodes("g")
        await shown.cluster.start(1)
        await shown.coordinator()
        await shown.until("g", lambda nodes: not nodes)


async def test_members_are_shown_again_after_the_session_was_lost(tmp_path: Path) -> None:
    def make() -> Registry:
        return SqliteRegistry(SqliteStore(tmp_path / "shared.sqlite", durable=False), SystemClock())

    async with showing(tmp_path, make) as shown:
        member = await shown.join("g", 0)
        await shown.until("g", lambda nodes: "/owners/t/0" in nodes)
        registry = shown.broker(1)._membership.registry
        lost = registry.session_id
        assert isinstance(shown.registry, SqliteRegistry)
        store = shown.registry._store
        assert await store.change(store.tree.end_session, lost)
        nodes = await shown.until(
            "g", lambda nodes: {f"/ids/{member}", "/owners/t/0"} <= set(nodes) and lost != registry.session_id
        )
        assert {node.owner for node in nodes.values()} == {0, registry.session_id}


async def test_a_registry_that_does_not_answer_keeps_no_client_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Registry:
        return SqliteRegistry(SqliteStore(tmp_path / "shared.sqlite", durable=False), SystemClock())

    async with showing(tmp_path, make) as shown:
        await shown.commit("g", {0: 1})
        await shown.until("g", lambda nodes: "/offsets/t/0" in nodes)
        registry: Any = shown.broker(1)._membership.registry
        commit, refusals = registry.commit, []

        async def refused(operations: Any) -> Any:
            refusals.append(operations)
            raise Unavailable("it hangs")

        registry.commit = refused
        for offset in range(2, 20):
            await shown.commit("g", {0: offset})
        async with asyncio.timeout(PATIENCE):
            while len(refusals) < 3:
                await asyncio.sleep(0.02)
        registry.commit = commit
        await shown.until("g", lambda nodes: nodes["/offsets/t/0"].data == b"19")
        lines = [each for each in caplog.messages if "cannot be shown in the registry" in each]
        assert len(lines) == 1, "one line for one outage"


async def test_groups_beyond_the_limit_are_left_out_until_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Registry:
        return SqliteRegistry(SqliteStore(tmp_path / "shared.sqlite", durable=False), SystemClock())

    async with showing(tmp_path, make) as shown:
        shown.broker(1)._coordinators._projector._max_bytes = 1_000
        await shown.commit("a", {0: 1, 1: 1})
        await shown.until("a", lambda nodes: "/offsets/t/1" in nodes)
        await shown.commit("b", {0: 1, 1: 1})
        async with asyncio.timeout(PATIENCE):
            while not any("group b is not shown" in line for line in caplog.messages):
                await asyncio.sleep(0.02)
        assert not await shown.nodes("b")
        await shown.delete("a")
        await shown.until("a", lambda nodes: not nodes)
        await shown.commit("b", {0: 2})
        nodes = await shown.until("b", lambda nodes: "/offsets/t/1" in nodes)
        assert data_of(nodes, "offsets") == {"/offsets/t/0": b"2", "/offsets/t/1": b"1"}


async def test_many_groups_and_offsets_take_few_commits_and_no_part_of_the_image(
    tmp_path: Path, make_registry: Callable[[], Registry]
) -> None:
    async with showing(tmp_path, make_registry) as shown:
        await shown.coordinator()
        registry: Any = shown.broker(1)._membership.registry
        commit, sizes = registry.commit, []

        async def counted(operations: Any) -> Any:
            sizes.append(len(operations))
            return await commit(operations)

        registry.commit = counted
        names = [f"g{number}" for number in range(100)]
        await asyncio.gather(*(shown.commit(name, {0: 1, 1: 2, 2: 3}) for name in names))
        for name in names:
            await shown.until(name, lambda nodes: len(data_of(nodes, "offsets")) == 3)
        assert sum(sizes) >= 100 * 8 and max(sizes) <= 510
        loaded = await layout.load_image(shown.registry, version=1, controller_id=1)
        assert set(loaded.image.topics) == {"t", OFFSETS_TOPIC}
        assert not loaded.leftovers


async def test_nothing_is_shown_by_default(tmp_path: Path, make_registry: Callable[[], Registry]) -> None:
    async with showing(tmp_path, make_registry, projection="false") as shown:
        await shown.commit("g", {0: 1})
        assert not await shown.registry.exists(layout.CONSUMERS)
        assert shown.broker(1)._coordinators._projector._task is None
