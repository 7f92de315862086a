"""Forward: a broker passes on a client's request that only the controller can answer.

Ours; Kafka's Envelope does the same and has no place for the image version. `request` is the body of the
client's request, encoded under `request_version`; `response` is the body of the response under the same
version. The broker answers its client when it has taken over the image of `image_version`, so that the client
sees there what it has just changed. Accepted on the inter-broker listener only.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, bytestring, int16, int32, int64, string


class ForwardRequest(Request, api_key=1101, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)
    request_key: int = int16()
    request_version: int = int16()
    client_id: str | None = string(None, nullable="0+")
    client_address: str = string()
    request: bytes = bytestring()


class ForwardResponse(Response, api_key=1101, versions="0", flexible="0+"):
    error_code: int = int16()  # NOT_CONTROLLER: nothing was done
    image_version: int = int64()
    response: bytes = bytestring()
