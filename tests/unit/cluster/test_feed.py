"""Followers of the image get what is new, as soon as it is there, and never go back."""

from __future__ import annotations

import asyncio

import pytest

from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import BrokerNode, ClusterImage, ImageDelta, first_version


def joins(base: int, broker: int) -> ImageDelta:
    return ImageDelta(base, base + 1, brokers={broker: BrokerNode(broker, "host", 9092)})


async def test_a_follower_waits_for_the_next_version() -> None:
    feed = ImageFeed()
    waiting = [asyncio.create_task(feed.after(0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    feed.publish(joins(0, 1))
    for task in waiting:
        news = await task
        assert isinstance(news, ImageDelta)
        assert list(news.brokers) == [1]
    assert list((await feed.after(0)).brokers) == [1]


async def test_a_follower_that_missed_several_versions_gets_them_as_one_delta() -> None:
    feed = ImageFeed()
    for version in range(3):
        feed.publish(joins(version, version + 1))
    news = await feed.after(1)
    assert isinstance(news, ImageDelta)
    assert (news.base, news.version, set(news.brokers)) == (1, 3, {2, 3})


async def test_a_follower_too_far_behind_gets_the_whole_image() -> None:
    feed = ImageFeed(kept=2)
    for version in range(3):
        feed.publish(joins(version, version + 1))
    assert isinstance(await feed.after(1), ImageDelta)
    assert await feed.after(0) is feed.current


async def test_a_new_epoch_starts_from_a_whole_image() -> None:
    feed = ImageFeed()
    feed.publish(joins(0, 1))
    image = ClusterImage(version=first_version(5))
    feed.reset(image)
    assert await feed.after(1) is image
    assert image.controller_epoch == 5
    with pytest.raises(ValueError, match="not newer"):
        feed.reset(ClusterImage(version=first_version(4)))


async def test_a_follower_of_a_newer_controller_ignores_older_images() -> None:
    feed = ImageFeed()
    feed.publish(joins(0, 1))
    ahead = asyncio.create_task(feed.after(first_version(9)))
    feed.publish(joins(1, 2))
    await asyncio.sleep(0)
    assert not ahead.done()
    ahead.cancel()
    await asyncio.gather(ahead, return_exceptions=True)
    feed.publish(joins(2, 3))  # the cancelled one is forgotten


def test_a_delta_applies_only_to_its_base_version() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        ImageFeed().publish(joins(3, 1))
    with pytest.raises(ValueError, match="cannot be followed"):
        joins(0, 1).then(joins(5, 2))
