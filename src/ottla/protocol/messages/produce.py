"""Produce: a client hands the leader of some partitions record batches to append.

The records of a partition are batches as the producer made them; the broker never opens them on this path.
With acks=0 there is no response at all, so an error can only be signalled by closing the connection.

Versions: 3 brought magic-2 batches and the transactional id, 5 the log start offset in the response, 7
zstd, 8 errors of single records, 9 the flexible encoding, 10 a hint at the new leader, 11 and 12 the
transaction protocol of KIP-890, 13 topic ids in place of names. Versions 0 to 2 are gone but still
advertised, because old librdkafka picks its compression by them.
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Buffer,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class PartitionProduceData(Struct):
    index: int = int32()
    records: Buffer | None = records(nullable="0+")


class TopicProduceData(Struct):
    name: str = string(versions="0-12")
    topic_id: bytes = uuid(versions="13+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Request, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = string(None, nullable="0+")  # null unless the producer is transactional
    acks: int = int16()  # 0: do not answer, 1: the leader has it, -1: the whole ISR has it
    timeout_ms: int = int32()  # how long the broker may wait for the ISR
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32()  # position of the record in its batch
    batch_index_error_message: str | None = string(None, nullable="0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(-1)
    leader_epoch: int = int32(-1)


class PartitionProduceResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()  # of the first record; -1 on error
    log_append_time_ms: int = int64(-1)  # -1 where the producer sets the time
    log_start_offset: int = int64(-1, versions="5+")
    # The records that made the broker refuse the batch.
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, versions="8+")
    error_message: str | None = string(None, versions="8+", nullable="8+")
    # Whom to ask instead, after NOT_LEADER_OR_FOLLOWER.
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, versions="10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = string(versions="0-12")
    topic_id: bytes = uuid(versions="13+")
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(None, nullable="0+")


class ProduceResponse(Response, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    # Where the leaders named above live.
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="10+", tag=0)
