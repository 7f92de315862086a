"""Following a cluster by deltas is as good as reading it whole, whatever happened in between."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.clock import SystemClock
from ottla.cluster.controller import Controller
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    BrokerNode,
    ClusterImage,
    ImageDelta,
    PartitionState,
    TopicImage,
    difference,
)
from ottla.cluster.layout import load_image
from ottla.cluster.registration import Registration
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.cluster.topic_rules import MorePartitions, NewTopic

names = st.sampled_from(["a", "b", "c", "a-b", "a.b"])
states = st.builds(
    PartitionState,
    replicas=st.just((1, 2)),
    isr=st.sampled_from([(1,), (1, 2)]),
    leader=st.sampled_from([1, 2, -1]),
    leader_epoch=st.integers(0, 3),
    partition_epoch=st.integers(0, 3),
)
configs = st.dictionaries(st.sampled_from(["k1", "k2"]), st.sampled_from(["v1", "v2"]), min_size=1)


@st.composite
def histories(draw: st.DrawFn) -> list[ClusterImage]:
    """Images as a cluster passes through them, each made whole from its facts."""
    facts = dict[str, TopicImage]()
    brokers = dict[int, BrokerNode]()
    settings = dict[tuple[int, str], dict[str, str]]()
    history = [_image(0, brokers, facts, settings)]
    for version in range(1, draw(st.integers(1, 12)) + 1):
        for _ in range(draw(st.integers(0, 3))):
            name = draw(names)
            match draw(st.sampled_from(["create", "delete", "grow", "change", "broker", "config"])):
                case "create":
                    partitions = tuple(draw(st.lists(states, min_size=1, max_size=4)))
                    facts[name] = TopicImage(name, draw(st.binary(min_size=16, max_size=16)), partitions)
                case "delete":
                    facts.pop(name, None)
                case "grow" if name in facts:
                    facts[name] = facts[name].with_partitions({len(facts[name].partitions): draw(states)})
                case "change" if name in facts:
                    facts[name] = facts[name].with_partitions({0: draw(states)})
                case "broker":
                    broker = draw(st.integers(1, 3))
                    if brokers.pop(broker, None) is None:
                        brokers[broker] = BrokerNode(broker, "host", 9092, None, version)
                case "config":
                    resource = draw(st.sampled_from([(TOPIC_CONFIG, name), (BROKER_CONFIG, "")]))
                    if settings.pop(resource, None) is None:
                        settings[resource] = draw(configs)
        ids = [topic.id for topic in facts.values()]
        if len(set(ids)) < len(ids):
            return history  # the same random id twice does not happen
        history.append(_image(version, brokers, facts, settings))
    return history


def _image(
    version: int,
    brokers: dict[int, BrokerNode],
    topics: dict[str, TopicImage],
    settings: dict[tuple[int, str], dict[str, str]],
) -> ClusterImage:
    return ClusterImage.of(
        version=version,
        cluster_id="c",
        controller_id=version % 2,
        brokers=brokers,
        topics=topics,
        configs={resource: dict(config) for resource, config in settings.items()},
    )


@given(histories())
def test_applying_each_delta_gives_the_whole_image(history: list[ClusterImage]) -> None:
    image = history[0]
    for following in history[1:]:
        image = image.apply(difference(image, following))
        assert image == following


@given(histories())
def test_a_merged_delta_equals_its_deltas_in_sequence(history: list[ClusterImage]) -> None:
    deltas = [difference(old, new) for old, new in itertools.pairwise(history)]
    if deltas:
        merged = deltas[0]
        for delta in deltas[1:]:
            merged = merged.then(delta)
        assert history[0].apply(merged) == history[-1]


@given(histories(), st.integers(1, 5), st.data())
def test_a_feed_follower_reaches_the_latest_image_from_any_version(
    history: list[ClusterImage], kept: int, data: st.DataObject
) -> None:
    feed = ImageFeed(history[0], kept=kept)
    for old, new in itertools.pairwise(history):
        feed.publish(difference(old, new))
    follower = data.draw(st.sampled_from(history))
    news = feed.since(follower.version)
    if follower.version == history[-1].version:
        assert news is None
    elif isinstance(news, ImageDelta):
        assert follower.apply(news) == history[-1]
    else:
        assert news == history[-1]
        assert history[-1].version - follower.version > kept


requests = st.lists(
    st.one_of(
        st.tuples(st.just("create"), names, st.integers(1, 3), st.dictionaries(st.just("k"), st.just("v"))),
        st.tuples(st.just("delete"), names),
        st.tuples(st.just("grow"), names, st.integers(1, 6)),
        st.tuples(st.just("configure"), names, st.sampled_from([None, "1", "2"])),
    ),
    max_size=15,
)


@settings(deadline=None)  # it syncs to a registry; the time is that of the machine
@given(requests)
def test_the_image_of_the_controller_equals_the_registry(
    operations: list[tuple[str, ...]],
) -> None:
    async def scenario() -> None:
        registry = SqliteRegistry(SqliteStore(None), clock=SystemClock())
        await registry.open()
        controller = Controller(
            registry, rng=random.Random(0), broker_id=1, check_topic_configs=lambda configs: None
        )
        await controller.start()
        registration = Registration(registry, BrokerNode(1, "localhost", 9092))
        await registration.start()
        while 1 not in controller.image.brokers:
            await controller.feed.after(controller.image.version)
        follower = controller.image
        for operation in operations:
            match operation:
                case "create", name, partitions, configs:
                    await controller.create_topics(
                        [NewTopic(name, int(partitions), configs=dict(cast("Any", configs)))]
                    )
                case "delete", name:
                    await controller.delete_topics([name])
                case "grow", name, count:
                    await controller.create_partitions([MorePartitions(name, int(count))])
                case "configure", name, value:
                    await controller.write_configs({(TOPIC_CONFIG, name): {"k": value}})
            news = controller.feed.since(follower.version)
            if isinstance(news, ImageDelta):
                follower = follower.apply(news)
        loaded = await load_image(registry, version=follower.version, controller_id=1)
        assert loaded.leftovers == ()
        assert follower == controller.image == loaded.image
        await registration.stop()
        await controller.stop()
        await registry.close()

    asyncio.run(scenario())
