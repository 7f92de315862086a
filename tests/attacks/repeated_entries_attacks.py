"""Requests that name one thing many times, so that a small frame asks for a huge answer or endless work."""

from __future__ import annotations

from attacks.attack import MB, Target, attack
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

_BROKER = 4


@attack("DescribeConfigs naming the broker 5,000 times", memory=64 * MB, kafka_takes_it=True)
def describe_configs_of_one_broker_many_times(target: Target) -> None:
    resources = [DescribeConfigsResource(resource_type=_BROKER, resource_name="1") for _ in range(5_000)]
    with target.client() as client:
        client.send(DescribeConfigsRequest(resources=resources), 4)
        client.receive_frame()
