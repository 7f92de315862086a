"""The limit of remembered producers holds in recovery as it does in service."""

from __future__ import annotations

from pathlib import Path

from attacks.attack import Target
from attacks.forged import batch, produce_request, record
from broker_process import BrokerProcess
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest

LIMIT = 16


def remembered(target: Target) -> list[int]:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    with target.client() as client:
        [partition] = client.call(request, 0).topics[0].partitions
    assert partition.error_code == 0
    return sorted(producer.producer_id for producer in partition.active_producers)


def test_a_killed_broker_restores_the_configured_number_of_producers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"producer.id.max.per.partition": LIMIT}) as broker:
        assert broker.process is not None
        target = Target(broker.bootstrap_servers, broker.process.pid)
        target.create_topic("t")
        with target.client() as client:
            for producer in range(3 * LIMIT):
                one = batch(record(), producer_id=producer, producer_epoch=0, base_sequence=0)
                answer = client.call(produce_request("t", one), 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
        before = remembered(target)
        assert 0 < len(before) <= LIMIT
        broker.kill()
        broker.start()
        assert remembered(target) == before
