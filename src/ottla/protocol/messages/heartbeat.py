"""Heartbeat: a member of a classic group stays alive, and learns whether the group rebalances.

Versions: 1 brought throttling, 3 the instance id of static members, 4 the flexible encoding.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, string


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="3+", nullable="3+")


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
