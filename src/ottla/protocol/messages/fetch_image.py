"""FetchImage: a broker asks the controller what is new in the cluster image since the version it has.

Ours, not Kafka's, whose brokers replicate the log of the controllers. A long poll: the controller answers at
once when it has something newer, else when it has, or with no change after `max_wait_ms`. The request is also
the sign of life of a broker: the controller fences one that it does not hear from. It is accepted on the
inter-broker listener only.

`base` in the response is the version that the changes apply to, or -1 when it holds the whole image.
Topics in `topics` are whole, those in `changed_topics` hold the partitions that changed or were added.
Version 1 brought what brokers report of their disks, version 2 which replicas are being added.
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class FetchImageRequest(Request, api_key=1100, versions="0-2", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)
    version: int = int64()  # of the newest image that the broker has received; 0 if none
    applied: int = int64()  # of the image that it acts on: by this the controller knows which brokers follow
    max_wait_ms: int = int32()


class ImageEndpoint(Struct):
    listener: str = string()
    host: str = string()
    port: int = int32()


class FailedReplicas(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ImageBroker(Struct):
    id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(None, nullable="0+")
    epoch: int = int64(-1)
    fenced: bool = boolean()
    endpoints: list[ImageEndpoint] = array(ImageEndpoint)
    is_impaired: bool = boolean(versions="1+")
    failed: list[FailedReplicas] = array(FailedReplicas, versions="1+")


class ImagePartition(Struct):
    index: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    partition_epoch: int = int32()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    elr: list[int] = array(int32)
    last_known_elr: list[int] = array(int32)
    adding: list[int] = array(int32, versions="2+")


class ImageTopic(Struct):
    name: str = string()
    id: bytes = uuid()
    partitions: list[ImagePartition] = array(ImagePartition)


class ImageConfigEntry(Struct):
    name: str = string()
    value: str = string()


class ImageConfig(Struct):
    type: int = int8()
    name: str = string()
    entries: list[ImageConfigEntry] | None = array(ImageConfigEntry, nullable="0+")  # null: none any more


class FetchImageResponse(Response, api_key=1100, versions="0-2", flexible="0+"):
    error_code: int = int16()
    base: int = int64(-1)
    version: int = int64()  # equal to the version of the request: nothing is newer
    cluster_id: str = string()
    controller_id: int = int32(-1)
    brokers: list[ImageBroker] = array(ImageBroker)
    removed_brokers: list[int] = array(int32)
    topics: list[ImageTopic] = array(ImageTopic)
    changed_topics: list[ImageTopic] = array(ImageTopic)
    removed_topics: list[str] = array(string)
    configs: list[ImageConfig] = array(ImageConfig)
