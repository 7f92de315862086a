"""JoinGroup: a member enters a group, or comes back for the next generation of it.

The answer comes when the group has gathered: generation, chosen protocol and leader for all, and for the
leader all members with what they subscribed to, so that it can decide which member reads what (see
SyncGroup).

Versions: 1 brought the rebalance timeout, 2 throttling, 4 that a new member is first given an id and joins
with it again, 5 static members, 6 the flexible encoding, 7 the protocol type in the answer, 8 the reason for
joining, 9 that a leader is told when its group needs no new assignment.
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    bytestring,
    int16,
    int32,
    string,
)


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: bytes = bytestring()


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(-1, versions="1+")  # before version 1 the session timeout stands in
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="5+", nullable="5+")
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)  # the best liked first
    reason: str | None = string(None, versions="8+", nullable="8+")


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="5+", nullable="5+")
    metadata: bytes = bytestring()


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = int32(versions="2+")
    error_code: int = int16()
    generation_id: int = int32(-1)
    protocol_type: str | None = string(None, versions="7+", nullable="7+")
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean(versions="9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
