"""A registry copied from each back end to each other one: complete, verified, and only where it may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from contract.places import PLACES, Place
from ottla.cluster import layout
from ottla.cluster.registry import Ambiguous, Create, Damaged, Operation, Registry, Set, Stat
from ottla.cluster.registry_copy import CannotCopy, copy_registry

PAIRS = [
    ("sqlite-file", "zookeeper"),
    ("zookeeper", "sqlite-file"),
    ("sqlite-file", "sqlite-file"),
    ("simulated", "simulated"),
]
Places = tuple[Place, Place]
LEFT_OUT = {layout.unclean_path(1), layout.CONSUMERS, f"{layout.CONSUMERS}/g"}


@pytest.fixture(params=PAIRS, ids="-to-".join)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    folders = [tmp_path / name for name in ("source", "target")]
    for folder in folders:
        folder.mkdir()
    source, target = (PLACES[name](folder) for name, folder in zip(request.param, folders, strict=True))
    return source, target


@asynccontextmanager
async def opened(places: Places) -> AsyncIterator[tuple[Registry, Registry]]:
    source, target = await places[0].open(), await places[1].open()
    try:
        yield source, target
    finally:
        await source.close()
        await target.close()


async def fill(registry: Registry, topics: int = 3) -> None:
    await layout.prepare(registry, Random(1))
    await registry.commit(
        [
            Set(layout.CONTROLLER_EPOCH, layout.epoch_data(7, 3)),
            Create(layout.unclean_path(1), b'{"epoch":5}'),
            Create("/config/topics/t0", b'{"retention.ms":"1"}'),
            Create(layout.CONSUMERS),
            Create(f"{layout.CONSUMERS}/g"),
        ]
    )
    for number in range(topics):
        path = layout.topic_path(f"t{number}")
        await registry.commit([Create(path, b"x" * number), Create(f"{path}/0", bytes(range(256)))])


async def contents(registry: Registry) -> Mapping[str, bytes]:
    return {path: node.data for path, node in (await registry.subtree("/")).items()}


async def test_all_that_lasts_is_copied_but_marks_of_ended_registrations_and_groups(places: Places) -> None:
    async with opened(places) as (source, target):
        await fill(source)
        before = await contents(source)
        count = await copy_registry(source, target)
        assert await contents(source) == before
        expected = {path: data for path, data in before.items() if path not in LEFT_OUT}
        assert await contents(target) == expected
        assert count == len(expected)
        assert await layout.cluster_id_of(target) == await layout.cluster_id_of(source)


async def test_a_source_with_a_registered_broker_is_refused(places: Places) -> None:
    async with opened(places) as (source, target):
        await fill(source)
        broker = await places[0].open()
        await broker.commit([Create(layout.broker_path(2), b"{}", ephemeral=True)])
        with pytest.raises(CannotCopy, match="broker 2 is registered"):
            await copy_registry(source, target)
        await broker.close()
        assert await contents(target) == {}
        await copy_registry(source, target)


async def test_a_target_that_is_not_empty_is_refused(places: Places) -> None:
    async with opened(places) as (source, target):
        await fill(source)
        await target.commit([Create("/something")])
        with pytest.raises(CannotCopy, match="not empty"):
            await copy_registry(source, target)
        assert await contents(target) == {"/something": b""}


async def test_a_complete_copy_is_not_overwritten(places: Places) -> None:
    async with opened(places) as (source, target):
        await fill(source)
        await copy_registry(source, target)
        with pytest.raises(CannotCopy, match="not empty"):
            await copy_registry(source, target)


async def test_a_source_without_a_cluster_is_refused(places: Places) -> None:
    async with opened(places) as (source, target):
        with pytest.raises(CannotCopy, match="no cluster"):
            await copy_registry(source, target)


class Interrupted:
    """A target whose commits fail from one number on; reads pass through."""

    def __init__(self, registry: Registry, after: int) -> None:
        self._registry = registry
        self._left = after

    async def commit(self, operations: list[Operation]) -> list[Stat | None]:
        if not self._left:
            raise Ambiguous("cut off")
        self._left -= 1
        return await self._registry.commit(operations)

    def __getattr__(self, name: str) -> object:
        return getattr(self._registry, name)


async def test_an_interrupted_copy_is_usable_by_no_broker_and_begins_again(places: Places) -> None:
    async with opened(places) as (source, target):
        await fill(source)
        for after in range(10):
            try:
                await copy_registry(source, Interrupted(target, after))  # type: ignore[arg-type]
                break
            except Ambiguous:
                pass
            if await contents(target):
                with pytest.raises(Damaged, match="unfinished copy"):
                    await layout.cluster_id_of(target)
        assert 3 <= after < 9
        assert await layout.cluster_id_of(target) == await layout.cluster_id_of(source)
        assert set(await contents(target)) == set(await contents(source)) - LEFT_OUT
