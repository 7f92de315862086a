"""A follower's log becomes its leader's, wherever the two parted and whatever offsets the leader has."""

from __future__ import annotations

from unit.replication.follower_loops import (
    KEY,
    are_equal,
    following,
    led,
    loop_of,
    running,
    until,
)
from unit.replication.leaders import (
    FOLLOWER,
    LEADER,
    ScriptedLeader,
    assign,
    in_event_loop,
)
from unit.storage.logs import Store, batch, offsets

# -- logs that parted ---------------------------------------------------------------------------------------


@in_event_loop
async def test_records_that_the_new_leader_does_not_have_are_cut_off() -> None:
    leader, follower = led(), following()
    scripted = ScriptedLeader(leader)
    leader.append(batch(5))
    async with running(scripted, follower) as loop:
        await until(lambda: follower.end_offset == 5)
        assign(follower, FOLLOWER, 1)  # it leads for a while, and nobody gets what is written to it
        loop.forget(KEY)
        follower.append(batch(4))
        assign(leader, LEADER, 2)
        leader.append(batch(2, value=b"other"))
        assign(follower, LEADER, 2)
        loop.follow(follower)
        await until(lambda: follower.end_offset == 7)
    assert are_equal(leader, follower)
    assert follower.log.leader_epochs.entries == [(0, 0), (2, 5)]


@in_event_loop
async def test_several_epochs_that_the_leader_never_saw_are_cut_off() -> None:
    """KIP-279: after fast failovers the place where the logs part is found step by step."""
    leader_store, follower_store = Store(), Store()
    for epoch, count in ((0, 3), (2, 3), (4, 3)):
        leader_store.log.append(batch(count), epoch)
    for epoch, count in ((0, 4), (1, 2), (3, 5)):
        follower_store.log.append(batch(count), epoch)
    leader, follower = led(leader_store, 5), following(follower_store, 5)
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.log.leader_epochs.latest == 4 and follower.end_offset == 9)
    # The batch of four records reached across the place where the logs parted, so it went as a whole.
    assert are_equal(leader, follower)


@in_event_loop
async def test_the_high_watermark_is_not_learned_before_the_log_is_cut() -> None:
    """KAFKA-14704."""
    leader_store, follower_store = Store(), Store()
    leader_store.log.append(batch(2), 0)
    follower_store.log.append(batch(2), 0)
    follower_store.log.append(batch(3), 1)
    leader, follower = led(leader_store, 2), following(follower_store, 2)
    leader.append(batch(6))
    leader.state.high_watermark = 8
    loop = loop_of(ScriptedLeader(leader), follower)
    await loop.step()
    assert (follower.end_offset, follower.high_watermark) == (2, 0)
    await loop.step()
    assert (follower.end_offset, follower.high_watermark) == (8, 8)


@in_event_loop
async def test_the_high_watermark_is_learned_after_a_cut_though_no_record_follows() -> None:
    leader_store, follower_store = Store(), Store()
    for store in (leader_store, follower_store):
        store.log.append(batch(2), 0)
    follower_store.log.append(batch(3), 1)
    leader, follower = led(leader_store, 2), following(follower_store, 2)
    leader.state.high_watermark = 2
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: (follower.end_offset, follower.high_watermark) == (2, 2))


@in_event_loop
async def test_an_epoch_in_which_nothing_was_written_does_not_stop_replication() -> None:
    leader, follower = led(), following()
    async with running(ScriptedLeader(leader), follower) as loop:
        leader.append(batch(5))
        await until(lambda: follower.end_offset == 5)
        loop.forget(KEY)
        assign(follower, FOLLOWER, 1)
        assign(leader, LEADER, 2)
        assign(follower, LEADER, 2)
        loop.follow(follower)
        leader.append(batch(1))
        await until(lambda: follower.end_offset == 6)
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_cut_survives_a_kill() -> None:
    leader_store, follower_store = Store(), Store()
    leader_store.log.append(batch(2), 0)
    for epoch, count in ((0, 2), (1, 3)):
        follower_store.log.append(batch(count), epoch)
    follower_store.log.flush()
    follower_store.directory.checkpoint()
    leader, follower = led(leader_store, 2), following(follower_store, 2)
    await loop_of(ScriptedLeader(leader), follower).step()
    assert follower.end_offset == 2
    log = follower_store.crash()
    assert (log.end_offset, log.failure, log.leader_epochs.entries) == (2, None, [(0, 0)])


# -- offsets that the leader does not have ------------------------------------------------------------------


@in_event_loop
async def test_a_new_replica_begins_at_the_leaders_log_start() -> None:
    leader, follower = led(), following()
    for _ in range(5):
        leader.append(batch(10))
    leader.state.high_watermark = 50
    leader.delete_records_before(20)
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.high_watermark == 50)
    assert (follower.log_start_offset, offsets(follower.log)[:1]) == (20, [20])
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_new_replica_takes_the_batch_in_which_the_leaders_log_starts() -> None:
    leader, follower = led(), following()
    for _ in range(5):
        leader.append(batch(10))
    leader.state.high_watermark = 50
    leader.delete_records_before(25)
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.high_watermark == 50)
    assert (follower.log_start_offset, follower.end_offset) == (25, 50)
    assert offsets(follower.log) == list(range(25, 50))


@in_event_loop
async def test_the_log_start_of_the_leader_is_followed() -> None:
    leader, follower = led(), following()
    leader.append(batch(10))
    leader.state.high_watermark = 10
    scripted = ScriptedLeader(leader)
    async with running(scripted, follower):
        await until(lambda: follower.high_watermark == 10)
        leader.delete_records_before(7)
        await until(lambda: follower.log_start_offset == 7)
        await until(lambda: scripted.fetches[-1].topics == [])
    told = [topic.partitions[0].log_start_offset for request in scripted.fetches for topic in request.topics]
    assert told[-1] == 7, "the leader learns it, for the low watermark of DeleteRecords"


@in_event_loop
async def test_the_high_watermark_is_not_below_the_start_of_a_log_that_begins_anew() -> None:
    """KAFKA-9491."""
    leader, follower = led(), following()
    leader.append(batch(10))
    leader.state.high_watermark = 10
    leader.delete_records_before(10)
    await loop_of(ScriptedLeader(leader), follower).step()
    assert (follower.log_start_offset, follower.end_offset, follower.high_watermark) == (10, 10, 10)


@in_event_loop
async def test_a_follower_ahead_of_its_leader_without_a_common_epoch_is_cut_to_the_leaders_end() -> None:
    """The leader was elected although it had lost its log."""
    follower_store = Store()
    follower_store.log.append(batch(5), 3)
    leader, follower = led(epoch=4), following(follower_store, 4)
    leader.append(batch(2, value=b"new"))
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.end_offset == 2)
    assert are_equal(leader, follower)


@in_event_loop
async def test_gaps_of_a_compacted_log_are_copied() -> None:
    leader_store = Store(cleanup_policy=("compact",))
    for base in (0, 40, 41, 900):
        data = batch(2, leader_epoch=0) if base != 40 else batch(1, leader_epoch=0)
        data[:8] = base.to_bytes(8, "big")
        leader_store.log.append_replicated(data)
    leader, follower = led(leader_store), following()
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.end_offset == 902)
    assert are_equal(leader, follower)
