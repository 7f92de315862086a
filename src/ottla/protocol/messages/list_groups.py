"""ListGroups: the groups that a broker coordinates.

Versions: 1 brought throttling, 3 the flexible encoding, 4 states and a filter by them, 5 types (classic,
consumer) and a filter by them.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = array(string, versions="4+")  # empty: all
    types_filter: list[str] = array(string, versions="5+")  # empty: all


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+")
    group_type: str = string(versions="5+")


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
