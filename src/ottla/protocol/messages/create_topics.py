"""CreateTopics: make topics, with a number of partitions or a placement of each replica by hand.

Each topic succeeds or fails for itself. With `validate_only` the broker says what would happen.

Versions: 4 lets the number of partitions and replicas be -1, the broker's defaults; 5 brought the flexible
encoding and the resulting configuration in the response, 6 throttling, 7 the id of the new topic.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)  # the first is the preferred leader


class CreatableTopicConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")


class CreatableTopic(Struct):
    name: str = string()
    num_partitions: int = int32()  # -1: the broker's default, or given by the assignments
    replication_factor: int = int16()  # -1: the broker's default, or given by the assignments
    # Empty: the broker places the replicas.
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Request, api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(60000)
    validate_only: bool = boolean()  # check all, make nothing


class CreatableTopicConfigs(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = int8(-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Struct):
    name: str = string()
    topic_id: bytes = uuid(versions="7+")
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    topic_config_error_code: int = int16(versions="5+", tag=0)  # why the configuration is not returned
    num_partitions: int = int32(-1, versions="5+")
    replication_factor: int = int16(-1, versions="5+")
    # Null only with an error.
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, versions="5+", nullable="5+")


class CreateTopicsResponse(Response, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
