"""Memory that clients make the broker keep is counted, and idle entries are evicted when it is used up."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.client_memory import MIN_IDLE, ClientMemory, Holding
from ottla.log_lines import ClientLog

KIND = "thing"


class World:
    """A clock by hand, and things that are kept until they are evicted."""

    def __init__(self, limit: int = 100, share: int = 50) -> None:
        self.time = 1000.0
        log = ClientLog(lambda: self.time)
        self.memory = ClientMemory(limit, share, lambda: self.time, lambda: log)
        self.dropped: list[str] = []
        self.kept: dict[str, Holding] = {}

    def keep(self, name: str, size: int, address: str = "a") -> bool:
        if not self.memory.admit(address, name, KIND, size):
            return False

        def evict(why: str) -> None:
            assert "client.memory.max.bytes" in why
            self.dropped.append(name)
            self.memory.release(self.kept.pop(name))

        self.kept[name] = self.memory.hold(address, name, KIND, size, evict)
        return True


def test_one_address_may_use_all_memory() -> None:
    world = World()
    assert all(world.keep(str(number), 10) for number in range(10))
    assert world.memory.used == 100
    assert not world.dropped


def test_the_longest_idle_entries_are_evicted_first() -> None:
    world = World()
    for number in range(10):
        world.keep(str(number), 10)
        world.time += 1
    world.memory.touch(world.kept["0"])
    world.time += MIN_IDLE
    assert world.keep("new", 15)
    assert world.dropped == ["1", "2"]


def test_recently_used_entries_are_not_evicted() -> None:
    world = World()
    for number in range(10):
        world.keep(str(number), 10)
    assert not world.keep("new", 10)
    assert not world.dropped
    assert world.memory.usage().refused == {KIND: 1}


def test_entries_of_addresses_above_their_share_are_evicted_first() -> None:
    world = World()
    for number in range(3):
        world.keep(f"b{number}", 10, "b")
    world.time += 100
    for number in range(7):
        world.keep(f"a{number}", 10, "a")
    assert world.keep("b3", 20, "b")
    assert world.dropped == ["a0", "a1"], "though what b has is idle for longer"
    assert world.keep("c", 30, "c")
    assert world.dropped[:3] == ["a0", "a1", "b0"], "no address is above its share now: the longest idle goes"


def test_entries_of_disconnected_clients_are_evicted_first_without_an_idle_time() -> None:
    world = World()
    for number in range(10):
        world.keep(str(number), 10)
    world.memory.abandon(world.kept["7"])
    assert world.keep("new", 10)
    assert world.dropped == ["7"]


def test_entries_that_cannot_be_evicted_stay() -> None:
    world = World()
    world.memory.hold("a", "fixed", KIND, 100)
    world.time += 1000
    assert not world.keep("new", 1)


def test_memory_of_an_entry_being_evicted_counts_as_free_at_once() -> None:
    world = World()
    asked: list[str] = []
    slow = world.memory.hold("a", "slow", KIND, 100, asked.append)
    world.time += 100
    assert world.keep("new", 60)
    assert len(asked) == 1
    assert world.keep("another", 40)
    assert len(asked) == 1, "it is asked once"
    world.memory.release(slow)
    assert world.memory.used == 100


def test_memory_of_an_entry_whose_eviction_failed_counts_as_used_again() -> None:
    world = World()
    slow = world.memory.hold("a", "slow", KIND, 100, lambda why: None)
    world.time += 100
    assert world.keep("new", 60)
    world.memory.stay(slow)
    world.time += 1
    assert not world.keep("another", 10)
    world.memory.release(slow)
    assert world.keep("another", 40)


def test_an_eviction_is_counted_and_logged_with_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = World()
    world.keep("the client", 100)
    world.time += 60
    world.keep("new", 10)
    assert "dropped the thing of the client, 100 bytes, idle for 60 s" in caplog.text
    usage = world.memory.usage()
    assert (usage.used, usage.limit, usage.evicted) == (10, 100, {KIND: 1})
    assert (usage.by_kind, usage.by_address) == ({KIND: 10}, {"a": 10})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "touch", "abandon", "release", "resize", "wait"]),
            st.sampled_from("abc"),
            st.integers(0, 60),
        )
    )
)
def test_used_memory_is_the_sum_of_all_entries(steps: list[tuple[str, str, int]]) -> None:
    world = World()
    for number, (step, address, size) in enumerate(steps):
        names = [name for name, holding in world.kept.items() if holding.address == address]
        if step == "keep":
            world.keep(str(number), size, address)
        elif step == "wait":
            world.time += size
        elif names:
            name = names[size % len(names)]
            holding = world.kept[name]
            if step == "touch":
                world.memory.touch(holding)
            elif step == "abandon":
                world.memory.abandon(holding)
            elif step == "resize":
                world.memory.resize(holding, min(size, holding.size))
            else:
                world.memory.release(world.kept.pop(name))
        assert world.memory.used == sum(holding.size for holding in world.kept.values()) <= 100
        by_address = world.memory.usage().by_address
        assert sum(by_address.values()) == world.memory.used
    for holding in world.kept.values():
        world.memory.release(holding)
    assert world.memory.usage()[0] == 0 and not world.memory._idle
