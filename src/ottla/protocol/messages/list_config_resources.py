"""ListConfigResources: what has a configuration, by kind.

Versions: 0 was called ListClientMetricsResources and knows only these; 1 brought all other kinds.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, string

CLIENT_METRICS = 16


class ListConfigResourcesRequest(Request, api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = array(int8, versions="1+")  # none: all kinds


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8(CLIENT_METRICS, versions="1+")


class ListConfigResourcesResponse(Response, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
