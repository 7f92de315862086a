"""Images and deltas come out of the wire as they went in."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.disk_states import HEALTHY, DiskReport
from ottla.cluster.image import (
    BrokerNode,
    ClusterImage,
    Endpoint,
    ImageDelta,
    PartitionState,
    TopicImage,
    difference,
)
from ottla.cluster.image_wire import BadImage, News, news_from, nothing_new, response_of
from ottla.protocol import codec
from ottla.protocol.apis import APIS
from ottla.protocol.messages.fetch_image import FetchImageResponse, ImagePartition, ImageTopic
from property.test_image import histories

T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


NEWEST = APIS[FetchImageResponse.api_key].max_version


def sent(news: News, known: int, version: int = NEWEST) -> News | None:
    """What a broker with image `known` gets of `news`, over the wire."""
    parts = codec.encode(finished(response_of(news)), version)
    frame = memoryview(b"".join(parts))
    return finished(news_from(codec.decode(FetchImageResponse, version, frame), known))


@given(histories())
def test_a_whole_image_arrives_as_it_was_sent(history: list[ClusterImage]) -> None:
    for image in history[1:]:
        assert sent(image, 0) == image


@given(histories())
def test_a_delta_arrives_as_it_was_sent(history: list[ClusterImage]) -> None:
    image = history[0]
    for following in history[1:]:
        delta = difference(image, following)
        arrived = sent(delta, image.version)
        assert arrived == delta
        assert isinstance(arrived, ImageDelta)
        assert image.apply(arrived) == following
        image = following


@given(histories(), st.data())
def test_merged_deltas_arrive_as_they_were_sent(history: list[ClusterImage], data: st.DataObject) -> None:
    if len(history) < 2:
        return
    deltas = [difference(old, new) for old, new in itertools.pairwise(history)]
    first = data.draw(st.integers(0, len(deltas) - 1))
    merged = deltas[first]
    for delta in deltas[first + 1 :]:
        merged = merged.then(delta)
    assert sent(merged, history[first].version) == merged


numbers = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(
    st.builds(
        PartitionState,
        replicas=numbers,
        isr=numbers,
        leader=st.integers(-1, 5),
        leader_epoch=st.integers(0, 2**31 - 1),
        partition_epoch=st.integers(0, 2**31 - 1),
        elr=numbers,
        last_known_elr=numbers,
    ),
    st.builds(
        BrokerNode,
        id=st.integers(0, 2**31 - 1),
        host=st.text(st.characters(codec="utf-8"), max_size=20),
        port=st.integers(0, 65535),
        rack=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
        epoch=st.integers(-1, 2**63 - 1),
        fenced=st.booleans(),
        endpoints=st.lists(
            st.builds(
                Endpoint,
                st.sampled_from(["INTERNAL", "PLAINTEXT"]),
                st.just("host"),
                st.integers(0, 65535),
            ),
            max_size=2,
        ).map(tuple),
        disk=st.builds(
            DiskReport,
            st.booleans(),
            st.frozensets(
                st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1)), max_size=4
            ),
        ),
    ),
    st.integers(1, 2**63 - 1),
)
def test_every_field_of_brokers_and_partitions_arrives(
    state: PartitionState, broker: BrokerNode, version: int
) -> None:
    image = ClusterImage.of(
        version=version,
        cluster_id="c",
        controller_id=broker.id,
        brokers={broker.id: broker},
        topics={"t": TopicImage("t", b"t" * 16, (state, state))},
        configs={(4, ""): {"a": ""}, (32, "g\u00e9"): {"b": "\u20ac"}},
    )
    arrived = sent(image, 0)
    assert arrived == image
    assert isinstance(arrived, ClusterImage)
    first, second = arrived.topics["t"].partitions
    assert first is second  # Metadata looks at each state once


def test_a_broker_of_an_earlier_version_gets_the_image_without_disks() -> None:
    disk = DiskReport(True, frozenset({(b"t" * 16, 0)}))
    brokers = {1: BrokerNode(1, "h", 9092, epoch=5, disk=disk)}
    image = ClusterImage.of(
        version=9, cluster_id="c", controller_id=1, brokers=brokers, topics={}, configs={}
    )
    arrived = sent(image, 0, version=0)
    assert isinstance(arrived, ClusterImage)
    assert arrived.brokers == {1: replace(brokers[1], disk=HEALTHY)}


def test_nothing_new_is_no_news() -> None:
    assert finished(news_from(nothing_new(7), 7)) is None


@pytest.mark.parametrize(
    "response",
    [
        FetchImageResponse(base=5, version=6),
        FetchImageResponse(base=7, version=6, cluster_id="c"),
        FetchImageResponse(base=-1, version=8),
        FetchImageResponse(base=-1, version=8, cluster_id="c", changed_topics=[ImageTopic(name="t")]),
        FetchImageResponse(
            base=7, version=8, topics=[ImageTopic(name="t", partitions=[ImagePartition(index=1)])]
        ),
    ],
    ids=["another base", "older", "no cluster", "whole and changed", "partition 0 is missing"],
)
def test_a_response_that_does_not_fit_is_refused(response: Any) -> None:
    with pytest.raises(BadImage):
        finished(news_from(response, 7))
