"""BeginShutdown: a broker that is about to stop asks the controller to move its leaderships away first.

Ours; in Kafka it is a flag of the broker's heartbeat. The controller answers when it has decided; a partition
whose only in-sync replica is that broker stays with it. The broker stops when it has taken over the image of
`image_version`. Accepted on the inter-broker listener only.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, int64


class BeginShutdownRequest(Request, api_key=1102, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)


class BeginShutdownResponse(Response, api_key=1102, versions="0", flexible="0+"):
    error_code: int = int16()
    image_version: int = int64()
    remaining: int = int32()  # partitions that the broker still leads, as no other replica is in sync
