"""DescribeConfigs: the configuration of topics and brokers, and where each value comes from.

Resource types: 2 topic, 4 broker, 8 logger, 16 client metrics, 32 group. Sources: 1 topic, 2 broker
(dynamic), 3 all brokers (dynamic), 4 the broker's file, 5 default. Types of values: 1 boolean, 2 string, 3
int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.

Versions: 1 brought sources and synonyms, 3 types and documentation, 4 the flexible encoding.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string, nullable="0+")  # null: all of them


class DescribeConfigsRequest(Request, api_key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean()  # tell all places that could set a value
    include_documentation: bool = boolean(versions="3+")


class DescribeConfigsSynonym(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")
    source: int = int8()


class DescribeConfigsResourceResult(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")  # null if it is a secret, or not set
    read_only: bool = boolean()
    config_source: int = int8(-1)
    is_sensitive: bool = boolean()
    # All places that could set it, the strongest first.
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = int8(versions="3+")
    documentation: str | None = string(versions="3+", nullable="0+")


class DescribeConfigsResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Response, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
