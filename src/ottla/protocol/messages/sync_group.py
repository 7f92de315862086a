"""SyncGroup: the leader of a generation sends the assignment of all members, and each member fetches its own.

The broker does not look into assignments: they are between the members.

Versions: 1 brought throttling, 3 the instance id of static members, 4 the flexible encoding, 5 protocol type
and name, which must be those of the group.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, bytestring, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = bytestring()


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="3+", nullable="3+")
    protocol_type: str | None = string(None, versions="5+", nullable="5+")
    protocol_name: str | None = string(None, versions="5+", nullable="5+")
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    protocol_type: str | None = string(None, versions="5+", nullable="5+")
    protocol_name: str | None = string(None, versions="5+", nullable="5+")
    assignment: bytes = bytestring()
