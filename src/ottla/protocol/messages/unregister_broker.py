"""UnregisterBroker: strike a broker that will not come back off the list."""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, string


class UnregisterBrokerRequest(Request, api_key=64, versions="0", flexible="0+"):
    broker_id: int = int32()


class UnregisterBrokerResponse(Response, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")
