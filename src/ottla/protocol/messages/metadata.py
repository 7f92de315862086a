"""Metadata: the brokers, the topics, and the leaders of their partitions.

The first question of every client, asked again whenever a leader has moved. It may create topics on the
way, if the broker's configuration and the request both allow it.

Versions: in version 0 an empty list of topics means all of them, from 1 on null does, and empty means none.
1 brought racks and the controller, 2 the cluster id, 4 the say over creating topics, 5 offline replicas, 7
leader epochs, 8 authorized operations (of the cluster only up to 10), 9 the flexible encoding, 10 topic ids
in the response, 12 asking by topic id, 13 an error for the whole response.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Struct):
    topic_id: bytes = uuid(versions="10+")
    name: str | None = string(nullable="10+")  # null when the topic is asked for by id


class MetadataRequest(Request, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")  # null: all topics
    allow_auto_topic_creation: bool = boolean(True, versions="4+")
    include_cluster_authorized_operations: bool = boolean(versions="8-10")
    include_topic_authorized_operations: bool = boolean(versions="8+")


class MetadataResponseBroker(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(None, versions="1+", nullable="1+")


class MetadataResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()  # -1: none
    leader_epoch: int = int32(-1, versions="7+")
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, versions="5+")


class MetadataResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="12+")  # null when an unknown id was asked for
    topic_id: bytes = uuid(versions="10+")
    is_internal: bool = boolean(versions="1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    # A set of bits; the lowest integer: not asked for.
    topic_authorized_operations: int = int32(-2147483648, versions="8+")


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = int32(versions="3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(None, versions="2+", nullable="2+")
    controller_id: int = int32(-1, versions="1+")
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    # A set of bits; the lowest integer: not asked for.
    cluster_authorized_operations: int = int32(-2147483648, versions="8-10")
    error_code: int = int16(versions="13+")
