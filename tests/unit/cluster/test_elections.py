"""What the controller does when brokers come, go and fall silent, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ottla.cluster.image import NO_LEADER, TOPIC_CONFIG, PartitionState
from ottla.cluster.layout import Lost, load_image
from ottla.cluster.registry import Unavailable
from ottla.cluster.topic_rules import NewTopic, TopicDefaults
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
)
from unit.cluster.members import failing
from unit.cluster.simulated_members import SESSION_SECONDS, SimulatedCluster, in_cluster


async def stored(cluster: SimulatedCluster) -> None:
    """The registry holds the partitions that the image shows."""
    image = cluster.image
    registry = cluster.members[cluster.controller_id].registry
    loaded = await load_image(registry, version=image.version, controller_id=image.controller_id)
    assert loaded.image.topics == image.topics


def isr_request(cluster: SimulatedCluster, isr: tuple[int, ...], sender: int = 1) -> AlterPartitionRequest:
    """What the leader of t-0 asks for."""
    state, brokers = cluster.partition(), cluster.image.brokers
    data = AlterPartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=b, broker_epoch=brokers[b].epoch) for b in isr],
    )
    topic = AlterPartitionTopic(topic_id=cluster.image.topics["t"].id, partitions=[data])
    return AlterPartitionRequest(broker_id=sender, broker_epoch=cluster.members[sender].epoch, topics=[topic])


# Brokers that die


def test_partitions_of_a_dead_broker_are_led_by_the_next_in_sync() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1), (3, 2, 1))
        cluster.kill(2)
        await cluster.until(lambda: cluster.partition().leader == 3, seconds=1)
        assert cluster.partition() == PartitionState((2, 3, 1), (3, 1), 3, 1, 1)
        assert cluster.partition("t", 1) == PartitionState((3, 2, 1), (3, 1), 3, 0, 1)
        await cluster.until(lambda: 2 not in cluster.image.brokers)
        await stored(cluster)

    in_cluster(scenario)


def test_a_new_controller_elects_leaders_for_its_dead_predecessor() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3))
        assert cluster.controller_id == 1
        cluster.kill(1)
        await cluster.until(lambda: cluster.active is not None and cluster.partition().leader == 2, seconds=1)
        assert cluster.partition() == PartitionState((1, 2, 3), (2, 3), 2, 1, 1)
        await stored(cluster)

    in_cluster(scenario)


def test_thousands_of_partitions_move_in_few_commits() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        for number in range(30):
            await cluster.create(f"t{number}", *([(2, 3, 1)] * 100))
        commits = cluster.members[1].registry.commits
        before = len(commits)
        cluster.kill(2)
        await cluster.until(lambda: 2 not in cluster.image.brokers)
        assert len(commits) - before <= 4
        topics = cluster.image.topics.values()
        assert all(state.leader == 3 for topic in topics for state in topic.partitions)
        await stored(cluster)

    in_cluster(scenario)


def test_what_the_registry_did_not_take_is_decided_again() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        cluster.members[1].registry.faults = [failing(Unavailable("disk full"))] * 3
        cluster.kill(2)
        await cluster.until(lambda: cluster.partition().leader == 3)
        assert cluster.controller_id == 1 and cluster.partition().leader_epoch == 1
        await stored(cluster)

    in_cluster(scenario)


def test_a_broker_that_registers_anew_leaves_the_isr_until_its_leader_asks_for_it() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3))
        cluster.kill(2)
        await cluster.start(2)
        assert cluster.partition().isr == (1, 3)
        response = await cluster.controller.alter_partitions(isr_request(cluster, (1, 3, 2)))
        assert response.error_code == 0 and response.topics[0].partitions[0].isr == [1, 3, 2]
        assert cluster.partition().isr == (1, 3, 2)

    in_cluster(scenario)


# Brokers that are silent


def test_a_silent_broker_is_fenced_and_comes_back_when_it_is_heard() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        began = cluster.loop.time()
        cluster.members[2].is_cut_off = True
        await cluster.until(lambda: cluster.unfenced == {1, 3})
        assert SESSION_SECONDS - 1 < cluster.loop.time() - began < SESSION_SECONDS + 1
        assert cluster.partition() == PartitionState((2, 3, 1), (3, 1), 3, 1, 1)
        refused = await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
        cluster.members[2].is_cut_off = False
        await cluster.until(lambda: cluster.unfenced == {1, 2, 3}, seconds=2)
        taken = await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        assert taken.topics[0].partitions[0].error_code == 0

    in_cluster(scenario)


def test_new_partitions_are_placed_on_brokers_in_service() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.members[2].is_cut_off = True
        await cluster.until(lambda: cluster.unfenced == {1, 3})
        made = await cluster.controller.create_topics([NewTopic("a", 6, 2), NewTopic("b", 1, 3)])
        refusal = made.results[1]
        assert isinstance(refusal, ApiError) and refusal.code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert {b for state in cluster.image.topics["a"].partitions for b in state.replicas} == {1, 3}
        await cluster.create("c", (2, 1))
        assert cluster.partition("c") == PartitionState((2, 1), (1,), 1)

    in_cluster(scenario)


def test_a_controller_that_hears_nobody_hands_over() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3))
        cluster.members[2].is_cut_off = cluster.members[3].is_cut_off = True
        await cluster.until(lambda: not cluster.members[1].controller.active)
        cluster.members[1].is_cut_off = True  # the cut is between 1 and the others
        cluster.members[2].is_cut_off = cluster.members[3].is_cut_off = False
        await cluster.until(lambda: cluster.active is not None and cluster.unfenced == {2, 3})
        assert cluster.controller_id in (2, 3)
        assert cluster.partition().leader == 2 and cluster.partition().isr == (2, 3)

    in_cluster(scenario)


def test_a_controller_that_nobody_replaces_fences_the_silent_brokers() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        for number in (2, 3):  # they hang, but their registry sessions last
            cluster.members[number].is_cut_off = True
            await cluster.members[number].controller.stop()
        await cluster.until(lambda: cluster.active is None)
        await cluster.until(lambda: cluster.active is not None and cluster.unfenced == {1})
        assert cluster.partition().leader == 1

    in_cluster(scenario)


def test_one_of_two_brokers_goes_on_without_the_other() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 1))
        epoch = cluster.image.controller_epoch
        cluster.members[2].is_cut_off = True
        await cluster.until(lambda: cluster.unfenced == {1})
        assert cluster.partition().leader == 1 and cluster.image.controller_epoch == epoch

    in_cluster(scenario, (1, 2))


# Brokers that stop and start


def test_a_broker_that_stops_hands_over_first() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        await cluster.create("alone", (2,))
        version, led = await cluster.controller.begin_shutdown(2, cluster.members[2].epoch)
        assert version == cluster.image.version and led == 1, "nobody else has it"
        assert cluster.partition() == PartitionState((2, 3, 1), (3, 1), 3, 1, 1)
        assert cluster.partition("alone") == PartitionState((2,), (2,), 2)
        refused = await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
        await cluster.controller.create_topics([NewTopic("new", 9, 1)])
        assert all(state.leader != 2 for state in cluster.image.topics["new"].partitions)
        await cluster.stop(2)
        await cluster.start(2)
        assert cluster.partition("alone") == PartitionState((2,), (2,), 2), "as if nothing had been"

    in_cluster(scenario)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_a_stop_of_all_brokers_does_not_move_leaders_when_they_return(order: tuple[int, ...]) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
        await cluster.create("alone", (1,), (2,), (3,))
        await cluster.stop(1, 2)
        await cluster.until(lambda: cluster.active is not None and set(cluster.image.brokers) == {3})
        before = cluster.image.topics
        assert [state.leader for state in before["t"].partitions] == [3, 3, 3]
        assert [state.leader for state in before["alone"].partitions] == [1, 2, 3]
        await cluster.stop(3)
        await cluster.start(*order)
        await asyncio.sleep(3 * SESSION_SECONDS)
        assert cluster.image.topics == before

    in_cluster(scenario)


def test_a_lone_broker_keeps_its_leader_epochs_over_restarts() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1,), (1,))
        before = cluster.image.topics["t"].partitions
        for end in ("stop", "kill", "stop"):
            await cluster.stop(1) if end == "stop" else cluster.kill(1)
            await cluster.start(1)
            assert cluster.image.topics["t"].partitions == before
        await asyncio.sleep(3 * SESSION_SECONDS)
        assert cluster.image.topics["t"].partitions == before

    in_cluster(scenario, (1,))


def test_the_first_broker_of_a_starting_cluster_waits_before_it_takes_over() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 1, 3), (3, 1, 2))
        before = cluster.image.topics["t"].partitions
        cluster.kill(1, 2, 3)
        await cluster.start(1)
        assert cluster.image.topics["t"].partitions == before
        await asyncio.sleep(SESSION_SECONDS / 2)
        await cluster.start(2)
        assert cluster.partition().leader == 2
        await asyncio.sleep(SESSION_SECONDS)
        assert cluster.partition("t", 1).leader == 1, "3 did not come"

    in_cluster(scenario)


def test_brokers_that_start_at_the_same_time_wait_for_the_others_before_they_take_over() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
        before = cluster.image.topics["t"].partitions
        cluster.kill(1, 2, 3)
        await asyncio.gather(*(cluster.begin_start(number, Lost.NOTHING) for number in (1, 2)))
        await cluster.until(lambda: cluster.unfenced == {1, 2})
        assert cluster.image.topics["t"].partitions == before
        await cluster.start(3)
        await asyncio.sleep(2 * SESSION_SECONDS)
        assert cluster.image.topics["t"].partitions == before

    in_cluster(scenario)


# Brokers that lost records


def test_a_lone_broker_that_lost_records_begins_new_leader_epochs_once() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1,))
        cluster.kill(1)
        await cluster.start(1, lost=Lost.TAIL)
        assert cluster.partition() == PartitionState((1,), (1,), 1, 1, 1)
        cluster.members[1].registration.accepted()
        await cluster.stop(1)
        await cluster.start(1)
        assert cluster.partition() == PartitionState((1,), (1,), 1, 1, 1)
        cluster.kill(1)
        await cluster.start(1, lost=Lost.TAIL)
        assert cluster.partition().leader_epoch == 2

    in_cluster(scenario, (1,))


def test_losses_are_acted_on_once_over_all_controllers() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (3, 2, 1))
        cluster.kill(3)
        await cluster.start(3, lost=Lost.TAIL)
        assert cluster.partition() == PartitionState((3, 2, 1), (2, 1), 2, 1, 1)
        await cluster.controller.alter_partitions(isr_request(cluster, (2, 1, 3), sender=2))
        cluster.kill(1)
        await cluster.until(lambda: cluster.active is not None and cluster.partition().isr == (2, 3))
        await asyncio.sleep(SESSION_SECONDS)
        assert cluster.partition().isr == (2, 3), "it had caught up since"

    in_cluster(scenario)


def test_losses_between_two_controllers_are_not_missed() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 1))
        cluster.kill(1, 2)  # nobody is left to see that 2 is gone
        await cluster.start(2, lost=Lost.TAIL)
        assert cluster.partition() == PartitionState((2, 1), (1,), NO_LEADER, 1, 1, (), (2,))
        await cluster.start(1)
        assert cluster.partition() == PartitionState((2, 1), (1,), 1, 2, 2)

    in_cluster(scenario, (1, 2))


def test_an_empty_disk_neither_leads_nor_is_waited_for() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 1))
        await cluster.controller.alter_partitions(isr_request(cluster, (2,), sender=2))
        cluster.kill(2)
        await cluster.start(2, lost=Lost.ALL)
        assert cluster.partition() == PartitionState((2, 1), (), NO_LEADER, 1, 2)
        _, results = await cluster.controller.elect_leaders([("t", 0)], unclean=True)
        assert results == {("t", 0): None}
        assert cluster.partition() == PartitionState((2, 1), (1,), 1, 2, 3)

    in_cluster(scenario, (1, 2))


# Administration


def test_preferred_leaders_are_elected_on_request() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1), (1, 2, 3))
        cluster.kill(2)
        await cluster.start(2)
        asked = [("t", 0), ("t", 1), ("t", 9), ("no", 0)]
        _, results = await cluster.controller.elect_leaders(asked)
        assert [result and result.code for result in results.values()] == [
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        version, results = await cluster.controller.elect_leaders(None)
        assert results == {("t", 0): None} and version == cluster.image.version
        assert cluster.partition().leader == 2
        _, results = await cluster.controller.elect_leaders([("t", 0)], unclean=True)
        refusal = results["t", 0]
        assert refusal is not None and refusal.code is ErrorCode.ELECTION_NOT_NEEDED
        await stored(cluster)

    in_cluster(scenario)


def test_preferred_leaders_are_elected_once_in_a_while() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        cluster.kill(2)
        await cluster.start(2)
        await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        assert cluster.partition().leader == 3
        await cluster.until(lambda: cluster.partition().leader == 2, seconds=301)

    in_cluster(scenario, balance_interval=300.0)


def test_an_unclean_election_follows_when_the_topic_allows_it() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 1))
        await cluster.controller.alter_partitions(isr_request(cluster, (2,), sender=2))
        cluster.kill(2)
        await cluster.until(lambda: 2 not in cluster.image.brokers)
        assert cluster.partition() == PartitionState((2, 1), (2,), 2, 0, 1)
        await cluster.controller.write_configs(
            {(TOPIC_CONFIG, "t"): {"unclean.leader.election.enable": "true"}}
        )
        await cluster.until(lambda: cluster.partition() == PartitionState((2, 1), (1,), 1, 1, 2), seconds=1)
        await cluster.until(lambda: cluster.controller.unclean_elections == 1, seconds=1)

    in_cluster(scenario, (1, 2))


def test_eligible_replicas_are_forgotten_before_fewer_need_to_be_in_sync() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        await cluster.controller.alter_partitions(isr_request(cluster, (2,), sender=2))
        assert cluster.partition().elr == (3, 1)
        before = cluster.image.version
        await cluster.controller.write_configs({(TOPIC_CONFIG, "t"): {"min.insync.replicas": "1"}})
        assert cluster.partition().elr == () and cluster.image.version == before + 2
        cluster.kill(2)
        await cluster.until(lambda: 2 not in cluster.image.brokers)
        assert cluster.partition().leader == 2, "the others may lack what it committed alone"
        await stored(cluster)

    in_cluster(scenario, defaults=TopicDefaults(min_insync_replicas=2))


# Whom the controller listens to


def test_requests_of_an_earlier_registration_are_refused() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        old = cluster.members[2].epoch
        request = isr_request(cluster, (2,), sender=2)
        cluster.kill(2)
        await cluster.start(2)
        assert (await cluster.controller.alter_partitions(request)).error_code == ErrorCode.STALE_BROKER_EPOCH
        with pytest.raises(ApiError) as error:
            cluster.controller.polled(2, old, 0)
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH
        with pytest.raises(ApiError) as error:
            cluster.controller.check_broker(2, old)
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH
        with pytest.raises(ApiError) as error:
            await cluster.controller.begin_shutdown(2, old)
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH

    in_cluster(scenario)


def test_a_standby_is_not_the_controller() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2))
        standby, epoch = cluster.members[2].controller, cluster.members[1].epoch
        response = await standby.alter_partitions(isr_request(cluster, (1,)))
        assert response.error_code == ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError) as error:
            standby.polled(1, epoch, 0)
        assert error.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError) as error:
            await standby.begin_shutdown(1, epoch)
        assert error.value.code is ErrorCode.NOT_CONTROLLER

    in_cluster(scenario, (1, 2))
