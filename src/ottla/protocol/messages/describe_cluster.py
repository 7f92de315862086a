"""DescribeCluster: the brokers of the cluster, its id and its controller.

Versions: 1 brought the type of endpoint (1 brokers, 2 controllers), 2 brokers that are shut out.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class DescribeClusterRequest(Request, api_key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(1, versions="1+")
    include_fenced_brokers: bool = boolean(versions="2+")  # also those that are registered but not in service


class DescribeClusterBroker(Struct):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(None, nullable="0+")
    is_fenced: bool = boolean(versions="2+")


class DescribeClusterResponse(Response, api_key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")
    endpoint_type: int = int8(1, versions="1+")
    cluster_id: str = string()
    controller_id: int = int32(-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    # A set of bits; the lowest integer: not asked for.
    cluster_authorized_operations: int = int32(-2147483648)
