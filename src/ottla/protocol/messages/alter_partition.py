"""AlterPartition: a leader asks the controller for another in-sync set (KIP-497).

Brokers send it to the controller, on the inter-broker listener. Every replica is named with its broker epoch,
so that one that has registered anew meanwhile is not taken for in sync (KIP-903). The response has the state
that holds now, whether the request changed it or not.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, int64, uuid


class BrokerState(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)


class AlterPartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr_with_epochs: list[BrokerState] = array(BrokerState)
    leader_recovery_state: int = int8()  # 1 after an unclean election; always 0 here
    partition_epoch: int = int32()  # as the leader knows it


class AlterPartitionTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[AlterPartitionData] = array(AlterPartitionData)


class AlterPartitionRequest(Request, api_key=56, versions="3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)
    topics: list[AlterPartitionTopic] = array(AlterPartitionTopic)


class AlteredPartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class AlteredTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[AlteredPartition] = array(AlteredPartition)


class AlterPartitionResponse(Response, api_key=56, versions="3", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[AlteredTopic] = array(AlteredTopic)
