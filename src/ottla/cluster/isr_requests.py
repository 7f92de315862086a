"""AlterPartition: what a leader gets for the in-sync sets that it asks for.

Each partition is decided by itself (`partition_rules.alter`). The response has the state that holds when the
changes are written, or the reason of a refusal. A request may be about many partitions, so it is looked at in
portions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ottla.cluster.image import ClusterImage, PartitionState
from ottla.cluster.partition_rules import Brokers, WantedIsr, alter
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
)

_AT_A_TIME = 200


@dataclass(frozen=True, slots=True)
class Alterations:
    changed: dict[str, dict[int, PartitionState]]
    """To be written before the response is sent."""
    response: AlterPartitionResponse


async def answer_alter_partition(
    request: AlterPartitionRequest,
    image: ClusterImage,
    brokers: Brokers,
    min_isr_of: Callable[[str], int],
    failed_at: Callable[[bytes, int], frozenset[int]],
) -> Alterations:
    """What is to be written and answered. The sender's broker epoch has been checked.

    `failed_at` gives the brokers whose replica of a partition, by topic id and number, has failed.
    """
    epochs = {broker.id: broker.epoch for broker in image.brokers.values()}
    changed: dict[str, dict[int, PartitionState]] = {}
    answers: list[AlteredTopic] = []
    looked_at = 0
    for asked in request.topics:
        topic = image.topics_by_id.get(asked.topic_id)
        answer = AlteredTopic(topic_id=asked.topic_id)
        answers.append(answer)
        for each in asked.partitions:
            looked_at += 1
            if looked_at % _AT_A_TIME == 0:
                await asyncio.sleep(0)
            index = each.partition_index
            try:
                if topic is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
                state = changed.get(topic.name, {}).get(index) or image.partition(topic.name, index)
                if state is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                wanted = _wanted(request.broker_id, each)
                new = alter(
                    state,
                    wanted,
                    brokers,
                    epochs,
                    min_isr=min_isr_of(topic.name),
                    failed=failed_at(topic.id, index),
                )
            except ApiError as refusal:
                answer.partitions.append(AlteredPartition(partition_index=index, error_code=refusal.code))
                continue
            if new is not state:
                changed.setdefault(topic.name, {})[index] = new
            answer.partitions.append(_altered(index, new))
    return Alterations(changed, AlterPartitionResponse(topics=answers))


def _wanted(sender: int, asked: AlterPartitionData) -> WantedIsr:
    isr = [(each.broker_id, each.broker_epoch) for each in asked.new_isr_with_epochs]
    return WantedIsr(sender, asked.leader_epoch, asked.partition_epoch, isr)


def _altered(index: int, state: PartitionState) -> AlteredPartition:
    return AlteredPartition(
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
    )
