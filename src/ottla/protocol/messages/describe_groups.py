"""DescribeGroups: state and members of classic groups.

Versions: 1 brought throttling, 3 authorized operations, 4 instance ids, 5 the flexible encoding, 6 an error
for groups that do not exist; before that they are said to be dead.
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


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(versions="3+")


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(None, versions="4+", nullable="4+")
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytestring()  # what it subscribed to; only of a stable group
    member_assignment: bytes = bytestring()  # only of a stable group


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string(None, versions="6+", nullable="6+")
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()  # the protocol's name; only of a stable group
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(-2147483648, versions="3+")  # the lowest integer: not asked for


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = int32(versions="1+")
    groups: list[DescribedGroup] = array(DescribedGroup)
