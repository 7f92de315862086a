"""How the controller changes topics, configurations and producer ids, also when the registry fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from ottla.broker.producer_id_block import ProducerIdBlock
from ottla.cluster.controller import Controller
from ottla.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ClusterImage, ImageDelta, TopicImage
from ottla.cluster.layout import load_image, partition_path, topic_path
from ottla.cluster.registry import Unavailable
from ottla.cluster.sqlite_registry import SqliteStore
from ottla.cluster.topic_rules import MorePartitions, NewTopic, PlannedTopic, TopicDefaults
from ottla.protocol.errors import ApiError, ErrorCode
from unit.cluster.members import (
    FaultyRegistry,
    ambiguous,
    cluster_of_one,
    controller_of,
    failing,
    open_session,
)


async def stored(registry: FaultyRegistry, controller: Controller) -> None:
    """The registry holds exactly what the image says."""
    image = controller.image
    loaded = await load_image(registry, version=image.version, controller_id=image.controller_id)
    assert loaded.image == image
    assert loaded.leftovers == ()


def codes(results: Sequence[object]) -> list[ErrorCode | None]:
    return [result.code if isinstance(result, ApiError) else None for result in results]


async def test_a_new_topic_is_in_the_image_of_the_returned_version() -> None:
    async with cluster_of_one() as (registry, controller):
        outcome = await controller.create_topics([NewTopic("t", 3, 1, configs={"retention.ms": "1"})])
        (plan,) = outcome.results
        assert isinstance(plan, PlannedTopic)
        assert controller.image.version == outcome.version
        assert controller.image.topics["t"] is controller.image.topics_by_id[plan.topic.id] is plan.topic
        assert controller.image.config(TOPIC_CONFIG, "t") == {"retention.ms": "1"}
        assert controller.image.partition_count == 3
        await stored(registry, controller)


async def test_validating_changes_nothing() -> None:
    async with cluster_of_one() as (registry, controller):
        before, commits = controller.image, len(registry.commits)
        outcome = await controller.create_topics([NewTopic("t", 2, 1)], validate_only=True)
        assert isinstance(outcome.results[0], PlannedTopic)
        assert controller.image is before and len(registry.commits) == commits


async def test_results_are_in_the_order_of_the_request() -> None:
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("have")])
        outcome = await controller.create_topics(
            [NewTopic("a"), NewTopic("b c"), NewTopic("have"), NewTopic("d"), NewTopic("e", 0)]
        )
        assert codes(outcome.results) == [
            None,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            None,
            ErrorCode.INVALID_PARTITIONS,
        ]
        assert set(controller.image.topics) == {"have", "a", "d"}
        await stored(registry, controller)


async def test_many_small_topics_share_commits() -> None:
    async with cluster_of_one() as (registry, controller):
        before = len(registry.commits)
        outcome = await controller.create_topics([NewTopic(f"t{n}", 2, 1) for n in range(1_000)])
        assert codes(outcome.results) == [None] * 1_000
        assert len(registry.commits) - before <= 5
        await stored(registry, controller)


async def test_a_topic_of_ten_thousand_partitions_is_created_and_deleted() -> None:
    async with cluster_of_one() as (registry, controller):
        outcome = await controller.create_topics([NewTopic("big", 9_999, 1), NewTopic("small", 1, 1)])
        assert codes(outcome.results) == [None, None]
        assert len(controller.image.topics["big"].partitions) == 9_999
        await stored(registry, controller)
        deleted = await controller.delete_topics(["big"])
        assert not isinstance(deleted.results[0], ApiError)
        assert controller.image.partition_count == 1
        await stored(registry, controller)


@pytest.mark.parametrize("broken", range(1, 4))
async def test_a_large_creation_that_fails_midway_leaves_no_trace(broken: int) -> None:
    async with cluster_of_one() as (registry, controller):
        registry.faults = [None] * broken + [failing(Unavailable("disk full"))]
        outcome = await controller.create_topics([NewTopic("big", 4_000, 1)])
        assert codes(outcome.results) == [ErrorCode.KAFKA_STORAGE_ERROR]
        while not controller.active or "big" in controller.image.topics:
            await controller.feed.after(controller.image.version)
        await stored(registry, controller)
        outcome = await controller.create_topics([NewTopic("big", 4_000, 1)])
        assert codes(outcome.results) == [None]
        await stored(registry, controller)


async def test_a_large_deletion_that_fails_midway_is_finished_by_the_next_controller() -> None:
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("big", 4_000, 1, configs={"k": "v"})])
        registry.faults = [None, failing(Unavailable("disk full"))]
        await controller.delete_topics(["big"])
        while not controller.active or "big" in controller.image.topics:
            await controller.feed.after(controller.image.version)
        assert not await registry.exists(topic_path("big"))
        assert not await registry.exists(partition_path("big", 3_999))
        await stored(registry, controller)


async def test_a_deletion_that_fails_before_its_last_commit_leaves_no_config_to_a_later_topic() -> None:
    partitions = 1_996  # with these the last commit holds a single operation
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("big", partitions, 1, configs={"k": "v"})])
        registry.faults = [None, None, failing(Unavailable("disk full"))]
        await controller.delete_topics(["big"])
        while not controller.active or "big" in controller.image.topics:
            await controller.feed.after(controller.image.version)
        outcome = await controller.create_topics([NewTopic("big", 1, 1, configs={"other": "w"})])
        assert codes(outcome.results) == [None]
        assert controller.image.config(TOPIC_CONFIG, "big") == {"other": "w"}
        await stored(registry, controller)


async def test_deleting_many_topics_takes_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of_one() as (_, controller):
        await controller.create_topics([NewTopic(f"t{n}", 1, 1) for n in range(50)])
        compared: list[object] = []

        def compare(self: TopicImage, other: object) -> bool:
            compared.append(other)
            return self is other

        monkeypatch.setattr(TopicImage, "__eq__", compare)
        outcome = await controller.delete_topics([f"t{n}" for n in range(50)] + ["t7"])
        assert codes(outcome.results) == [None] * 50 + [ErrorCode.INVALID_REQUEST]
        assert len(compared) < 100


async def test_topics_are_deleted_by_name_or_id_with_their_configs() -> None:
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("a", configs={"k": "v"}), NewTopic("b"), NewTopic("c")])
        by_id = controller.image.topics["b"].id
        outcome = await controller.delete_topics(["a", by_id, "no", b"x" * 16])
        found = [r.code if isinstance(r, ApiError) else r.name for r in outcome.results]
        assert found == ["a", "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
        assert set(controller.image.topics) == {"c"}
        assert not [name for kind, name in controller.image.configs if kind == TOPIC_CONFIG]
        await stored(registry, controller)


async def test_a_topic_named_twice_is_deleted_once() -> None:
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("a")])
        outcome = await controller.delete_topics(["a", controller.image.topics["a"].id])
        assert [isinstance(result, ApiError) for result in outcome.results] == [False, True]
        await stored(registry, controller)


async def test_a_topic_made_again_has_a_new_id_and_no_old_configs() -> None:
    async with cluster_of_one() as (_, controller):
        await controller.create_topics([NewTopic("a", configs={"k": "v"})])
        old = controller.image.topics["a"].id
        await controller.delete_topics(["a"])
        await controller.create_topics([NewTopic("a")])
        assert controller.image.topics["a"].id != old
        assert old not in controller.image.topics_by_id
        assert controller.image.config(TOPIC_CONFIG, "a") == {}


async def test_partitions_are_added_and_the_old_ones_stay() -> None:
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("t", 2, 1)])
        before = controller.image
        await controller.create_partitions([MorePartitions("t", 5)])
        assert controller.image.topics["t"].partitions[:2] == before.topics["t"].partitions
        assert controller.image.partition_count == 5
        news = controller.feed.since(before.version)
        assert isinstance(news, ImageDelta)
        assert list(news.partitions["t"]) == [2, 3, 4] and not news.topics
        await stored(registry, controller)


async def test_configs_are_set_and_removed() -> None:
    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("t")])
        topic, every = (TOPIC_CONFIG, "t"), (BROKER_CONFIG, "")
        await controller.write_configs({topic: {"a": "1", "b": "2"}, every: {"c": "3"}})
        assert controller.image.config(*topic) == {"a": "1", "b": "2"}
        assert controller.image.config(*every) == {"c": "3"}
        await stored(registry, controller)
        await controller.write_configs({topic: {"a": None, "b": "9"}, every: {"c": None, "never": None}})
        assert controller.image.config(*topic) == {"b": "9"}
        assert every not in controller.image.configs
        await stored(registry, controller)


async def test_concurrent_config_changes_lose_no_update() -> None:
    async with cluster_of_one() as (_, controller):
        await controller.create_topics([NewTopic("t")])

        def append(item: str) -> None:
            def change(present: Mapping[str, str]) -> Mapping[str, str | None]:
                return {"list": ",".join(filter(None, [present.get("list"), item]))}

            tasks.append(asyncio.create_task(controller.write_configs({(TOPIC_CONFIG, "t"): change})))

        tasks: list[asyncio.Task[object]] = []
        for number in range(20):
            append(str(number))
        await asyncio.gather(*tasks)
        value = controller.image.config(TOPIC_CONFIG, "t")["list"]
        assert sorted(map(int, value.split(","))) == list(range(20))


async def test_a_refused_config_change_does_not_touch_the_others() -> None:
    def refuse(present: Mapping[str, str]) -> Mapping[str, str | None]:
        raise ApiError(ErrorCode.INVALID_CONFIG, "no")

    async with cluster_of_one() as (registry, controller):
        await controller.create_topics([NewTopic("t")])
        outcome = await controller.write_configs(
            {(BROKER_CONFIG, "1"): refuse, (TOPIC_CONFIG, "t"): {"a": "1"}, (TOPIC_CONFIG, "no"): {"a": "1"}}
        )
        assert [r.code.name if isinstance(r, ApiError) else r for r in outcome.results] == [
            "INVALID_CONFIG",
            (TOPIC_CONFIG, "t"),
            "UNKNOWN_TOPIC_OR_PARTITION",
        ]
        await stored(registry, controller)


async def test_config_names_may_hold_anything() -> None:
    async with cluster_of_one() as (registry, controller):
        group = (32, "my/group %?<default>")
        await controller.write_configs({group: {"k": "v"}})
        assert controller.image.config(*group) == {"k": "v"}
        await stored(registry, controller)


async def test_changes_are_refused_while_the_registry_fails_and_work_afterwards() -> None:
    async with cluster_of_one() as (registry, controller):
        registry.faults = [failing(Unavailable("disk full"))]
        outcome = await controller.create_topics([NewTopic("t")])
        (refusal,) = outcome.results
        assert isinstance(refusal, ApiError)
        assert refusal.code is ErrorCode.KAFKA_STORAGE_ERROR and "disk full" in refusal.message
        assert "t" not in controller.image.topics
        assert codes((await controller.create_topics([NewTopic("t")])).results) == [None]
        await stored(registry, controller)


@pytest.mark.parametrize("happened", [True, False])
async def test_after_an_ambiguous_commit_the_image_is_what_the_registry_holds(happened: bool) -> None:
    async with cluster_of_one() as (registry, controller):
        registry.faults = [ambiguous(happened=happened)]
        outcome = await controller.create_topics([NewTopic("t")])
        assert isinstance(outcome.results[0], PlannedTopic) == happened
        assert ("t" in controller.image.topics) == happened
        await stored(registry, controller)


async def test_a_standby_refuses_everything() -> None:
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    active, standby = controller_of(one, broker_id=1), controller_of(two, broker_id=2)
    await active.start()
    await standby.start()
    outcome = await standby.create_topics([NewTopic("a"), NewTopic("b")])
    assert codes(outcome.results) == [ErrorCode.NOT_CONTROLLER] * 2
    with pytest.raises(ApiError) as refused:
        await standby.allocate_producer_ids()
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await active.stop()
    await standby.stop()
    await one.close()
    await two.close()


async def test_producer_ids_are_never_reused() -> None:
    store = SqliteStore(None)
    keeper = await open_session(store)
    given: list[int] = []
    for _ in range(3):
        session = await open_session(store)
        controller = controller_of(session)
        await controller.start()
        ids = ProducerIdBlock(controller.allocate_producer_ids)
        given += await asyncio.gather(*(ids.next() for _ in range(400)))
        await controller.stop()
        await session.close()
    assert len(set(given)) == len(given) == 1_200
    assert given[:3] == [0, 1, 2]
    await keeper.close()


async def test_a_block_of_producer_ids_lasts_for_a_thousand_producers() -> None:
    async with cluster_of_one() as (registry, controller):
        before = len(registry.commits)
        block = ProducerIdBlock(controller.allocate_producer_ids)
        ids = await asyncio.gather(*(block.next() for _ in range(2_500)))
        assert sorted(ids) == list(range(2_500))
        assert len(registry.commits) - before == 3


async def test_the_partition_limit_of_the_cluster_is_enforced() -> None:
    async with cluster_of_one(defaults=TopicDefaults(max_partitions=5)) as (_, controller):
        outcome = await controller.create_topics([NewTopic("a", 3, 1), NewTopic("b", 3, 1)])
        assert codes(outcome.results) == [None, ErrorCode.POLICY_VIOLATION]
        grown = await controller.create_partitions([MorePartitions("a", 6)])
        assert isinstance(grown.results[0], ApiError)


async def test_all_metadata_survives_a_restart() -> None:
    store = SqliteStore(None)
    keeper = await open_session(store)
    images: list[ClusterImage] = []
    for _ in range(2):
        session = await open_session(store)
        controller = controller_of(session)
        await controller.start()
        if not images:
            await controller.write_configs({(BROKER_CONFIG, ""): {"a": "1"}})
        images.append(controller.image)
        await controller.stop()
        await session.close()
    assert images[0].cluster_id == images[1].cluster_id
    assert images[0].configs == images[1].configs
    assert images[1].version > images[0].version
    await keeper.close()
