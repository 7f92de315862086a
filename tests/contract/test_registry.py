"""What every registry back end promises (`ottla.cluster.registry`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from contract.places import Place
from ottla.cluster.registry import (
    MAX_COMMIT_OPERATIONS,
    MAX_NODE_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Registry,
    SessionLost,
    Set,
)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what another session will see soon; the test's deadline is the limit."""
    while not await condition():
        await asyncio.sleep(0.005)


async def close(*registries: Registry) -> None:
    for registry in registries:
        await registry.close()


# Nodes


async def test_a_created_node_holds_its_data_and_starts_at_version_zero(place: Place) -> None:
    registry = await place.open()
    data = bytes(range(256))
    (stat,) = await registry.commit([Create("/a", data)])
    node = await registry.get("/a")
    assert (node.data, node.version, node.owner) == (data, 0, 0)
    assert stat is not None and (stat.version, stat.creation_id) == (0, node.creation_id)
    await registry.commit([Create("/empty")])
    assert (await registry.get("/empty")).data == b""
    await close(registry)


async def test_each_change_raises_the_version_and_keeps_the_creation_id(place: Place) -> None:
    registry = await place.open()
    (made,) = await registry.commit([Create("/a", b"0")])
    for expected in (1, 2, 3):
        (stat,) = await registry.commit([Set("/a", b"x", version=expected - 1)])
        assert made is not None and stat is not None
        assert (stat.version, stat.creation_id) == (expected, made.creation_id)
    assert (await registry.get("/a")).version == 3
    await close(registry)


async def test_creation_ids_grow_even_when_a_node_is_made_again(place: Place) -> None:
    registry = await place.open()
    ids = []
    for _ in range(3):
        (stat,) = await registry.commit([Create("/a")])
        assert stat is not None
        ids.append(stat.creation_id)
        await registry.commit([Delete("/a")])
    assert ids == sorted(set(ids))
    await close(registry)


async def test_missing_nodes_and_existing_nodes_are_distinguished(place: Place) -> None:
    registry = await place.open()
    assert not await registry.exists("/a")
    assert await registry.find("/a") is None
    with pytest.raises(NoNode):
        await registry.get("/a")
    await registry.commit([Create("/a")])
    assert await registry.exists("/a")
    await close(registry)


async def test_errors_name_the_node(place: Place) -> None:
    registry = await place.open()
    await registry.commit([Create("/a"), Create("/a/b")])
    for operation, error, path in (
        (Create("/a"), NodeExists, "/a"),
        (Create("/no/child"), NoNode, "/no"),
        (Set("/no", b""), NoNode, "/no"),
        (Set("/a", b"", version=7), BadVersion, "/a"),
        (Delete("/no"), NoNode, "/no"),
        (Delete("/a/b", version=7), BadVersion, "/a/b"),
        (Delete("/a"), NotEmpty, "/a"),
        (Check("/no", 0), NoNode, "/no"),
        (Check("/a", 1), BadVersion, "/a"),
    ):
        with pytest.raises(error) as refusal:
            await registry.commit([operation])
        assert refusal.value.path == path
    await close(registry)


async def test_paths_are_checked(place: Place) -> None:
    registry = await place.open()
    for path in ("a", "", "/a/", "//a", "/a//b"):
        with pytest.raises(ValueError, match="not a registry path"):
            await registry.commit([Create(path)])
    await close(registry)


async def test_nodes_and_commits_above_the_size_limits_are_refused(place: Place) -> None:
    registry = await place.open()
    await registry.commit([Create("/a", b"x" * MAX_NODE_BYTES)])
    with pytest.raises(ValueError, match="at most"):
        await registry.commit([Create("/b", b"x" * (MAX_NODE_BYTES + 1))])
    with pytest.raises(ValueError, match="at most"):
        await registry.commit([Create(f"/{n}") for n in range(MAX_COMMIT_OPERATIONS + 1)])
    await registry.commit([Create(f"/{n}") for n in range(MAX_COMMIT_OPERATIONS)])
    await close(registry)


# Commits


async def test_a_commit_whose_last_operation_fails_changes_nothing(place: Place) -> None:
    registry = await place.open()
    await registry.commit([Create("/a", b"old"), Create("/gone")])
    with pytest.raises(BadVersion):
        await registry.commit([Set("/a", b"new"), Delete("/gone"), Create("/b"), Check("/a", 9)])
    assert (await registry.get("/a")).data == b"old"
    assert (await registry.get("/a")).version == 0
    assert await registry.children("/") == ["a", "gone"]
    await close(registry)


async def test_operations_of_a_commit_see_the_ones_before_them(place: Place) -> None:
    registry = await place.open()
    results = await registry.commit(
        [Create("/a"), Create("/a/b"), Set("/a", b"1", version=0), Check("/a", 1), Delete("/a/b")]
    )
    assert [None if stat is None else stat.version for stat in results] == [0, 0, 1, None, None]
    assert await registry.children("/a") == []
    await close(registry)


async def test_of_concurrent_creations_of_a_node_exactly_one_succeeds(place: Place) -> None:
    sessions = [await place.open() for _ in range(4)]

    async def race(registry: Registry) -> bool:
        try:
            await registry.commit([Create("/prize", ephemeral=True)])
        except NodeExists:
            return False
        return True

    for _ in range(10):
        won = await asyncio.gather(*(race(registry) for registry in sessions))
        assert won.count(True) == 1
        node = await sessions[0].get("/prize")
        assert node.owner == sessions[won.index(True)].session_id
        await sessions[0].commit([Delete("/prize")])
    await close(*sessions)


async def test_version_checks_lose_no_update_between_sessions(place: Place) -> None:
    sessions = [await place.open() for _ in range(3)]
    await sessions[0].commit([Create("/count", b"0")])

    async def count(registry: Registry) -> None:
        done = 0
        while done < 20:
            node = await registry.get("/count")
            try:
                await registry.commit([Set("/count", b"%d" % (int(node.data) + 1), node.version)])
            except BadVersion:
                continue
            done += 1

    await asyncio.gather(*(count(registry) for registry in sessions))
    assert (await sessions[1].get("/count")).data == b"60"
    await close(*sessions)


# Reading many


async def test_children_are_names_in_order(place: Place) -> None:
    registry = await place.open()
    await registry.commit([Create(path) for path in ("/a", "/a/z", "/a/b", "/a/b/deep", "/ab")])
    assert await registry.children("/a") == ["b", "z"]
    assert await registry.children("/a/z") == []
    assert await registry.children("/") == ["a", "ab"]
    with pytest.raises(NoNode):
        await registry.children("/no")
    await close(registry)


async def test_a_subtree_contains_all_descendants_and_no_siblings(place: Place) -> None:
    registry = await place.open()
    beside = ["/a", "/a-b", "/a.b", "/a0", "/ab", "/b"]
    below = ["/a/b", "/a/b/c", "/a/b-c", "/a/ü"]
    await registry.commit([Create(path, path.encode()) for path in beside + below])
    found = await registry.subtree("/a")
    assert {path: node.data.decode() for path, node in found.items()} == {path: path for path in below}
    assert list(found) == sorted(found)
    assert set(await registry.subtree("/")) == set(beside + below)
    assert await registry.subtree("/no") == {}
    assert set(await registry.subtree("/", without="/a")) == set(beside) - {"/a"}
    assert set(await registry.subtree("/a", without="/a/b")) == {"/a/b-c", "/a/ü"}
    assert set(await registry.subtree("/a", without="/no")) == set(below)
    await close(registry)


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_thousands_of_nodes_are_written_in_batches_and_read_in_one(place: Place, count: int) -> None:
    registry = await place.open()
    await registry.commit([Create("/many")])
    for start in range(0, count, MAX_COMMIT_OPERATIONS):
        batch = range(start, start + MAX_COMMIT_OPERATIONS)
        await registry.commit([Create(f"/many/{n}", b"%d" % n) for n in batch])
    found = await registry.subtree("/many")
    assert {int(node.data) for node in found.values()} == set(range(count))
    await close(registry)


# Sessions


async def test_sessions_see_the_commits_of_other_sessions(place: Place) -> None:
    one, two = await place.open(), await place.open()
    assert one.session_id != two.session_id
    await one.commit([Create("/a", b"1")])
    assert (await two.get("/a")).data == b"1"
    await two.commit([Set("/a", b"2")])
    assert (await one.get("/a")).data == b"2"
    await close(one, two)


async def test_ephemeral_nodes_have_an_owner_and_are_removed_with_its_session(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.commit([Create("/mine", b"x", ephemeral=True), Create("/ours")])
    assert (await two.get("/mine")).owner == one.session_id
    await one.close()
    assert not await two.exists("/mine")
    assert await two.exists("/ours")
    await two.close()


async def test_an_ephemeral_node_has_no_children(place: Place) -> None:
    registry = await place.open()
    await registry.commit([Create("/mine", ephemeral=True)])
    with pytest.raises(ValueError, match="ephemeral"):
        await registry.commit([Create("/mine/child")])
    await close(registry)


async def test_ephemeral_nodes_of_a_killed_process_are_removed(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.commit([Create("/mine", ephemeral=True)])
    watch = await two.watch("/mine")
    await place.crash(one)
    await watch
    assert not await two.exists("/mine")
    await two.close()


async def test_an_expired_session_cannot_write_until_it_is_renewed(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.commit([Create("/mine", ephemeral=True), Create("/ours")])
    first = one.session_id
    await place.expire(one, witness=two)
    with pytest.raises(SessionLost):
        await one.commit([Set("/ours", b"zombie")])
    assert one.lost.is_set() and one.may_be_over()
    with pytest.raises(SessionLost):
        await one.get("/ours")
    assert (await two.get("/ours")).data == b""
    assert not await two.exists("/mine")
    assert await one.renew() != first
    assert not one.lost.is_set() and not one.may_be_over()
    assert await one.renew() == one.session_id
    await one.commit([Set("/ours", b"alive"), Create("/mine", ephemeral=True)])
    await close(one, two)


async def test_a_lost_session_is_signalled_without_a_request(place: Place) -> None:
    one, two = await place.open(), await place.open()
    watch = await one.watch("/never")
    await place.expire(one, witness=two)
    await one.lost.wait()
    await watch  # a lost session makes everything dirty
    await one.renew()
    await close(one, two)


# Watches


async def test_a_watch_fires_for_the_node_and_for_its_children(place: Place) -> None:
    one, two = await place.open(), await place.open()
    for author in (one, two):
        for operation in (
            Create("/a", b""),
            Set("/a", b"1"),
            Create("/a/b"),
            Delete("/a/b"),
            Delete("/a"),
        ):
            watch = await one.watch("/a")
            await author.commit([operation])
            await watch
    await close(one, two)


async def test_a_watch_sees_children_replaced_in_one_commit(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.commit([Create("/a"), Create("/a/b"), Create("/a/c")])
    watch = await one.watch("/a")
    await two.commit([Delete("/a/b"), Create("/a/b")])
    await watch
    await close(one, two)


async def test_a_watch_does_not_fire_for_others_and_fires_once(place: Place) -> None:
    one = await place.open()
    await one.commit([Create("/a"), Create("/a/b")])
    watch = await one.watch("/a")
    await one.commit([Create("/ab"), Set("/a/b", b"1"), Create("/a/b/c")])
    await one.exists("/a")
    assert not watch.done()
    await one.commit([Set("/a", b"1")])
    await watch
    again = await one.watch("/a")
    await one.exists("/a")
    assert not again.done()
    again.cancel()
    await one.commit([Set("/a", b"2")])
    await close(one)


async def test_a_change_between_watching_and_reading_is_not_missed(place: Place) -> None:
    one, two = await place.open(), await place.open()
    watch = await one.watch("/a")
    await two.commit([Create("/a")])
    assert await one.exists("/a")
    await watch
    await close(one, two)


# Life after the last session


async def test_nodes_outlive_all_sessions(place: Place) -> None:
    if not place.survives_restart:
        return  # a registry in memory makes no such promise
    one = await place.open()
    await one.commit([Create("/a", b"kept"), Create("/mine", ephemeral=True)])
    created = (await one.get("/a")).creation_id
    await place.crash(one)
    two = await place.open()
    assert (await two.get("/a")).data == b"kept"

    async def gone() -> bool:
        return not await two.exists("/mine")

    await until(gone)
    (stat,) = await two.commit([Create("/b")])
    assert stat is not None and stat.creation_id > created
    await close(two)
