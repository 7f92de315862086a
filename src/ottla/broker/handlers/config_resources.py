"""ListConfigResources (74): the names of all topics, brokers, loggers' brokers and configured groups.

As in Kafka topics and brokers are listed whether something was set for them or not, and groups only when it
was. Client metrics have no resources, since none are collected. Version 0 asks for client metrics alone.
"""

from __future__ import annotations

from ottla.broker.client_view import endpoints_on
from ottla.broker.dispatch import RequestContext
from ottla.broker.handlers.configs import BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC
from ottla.broker.ports import ImageAccess
from ottla.broker.request_scheduler import Steps
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_PAUSE_AFTER = 500
_ALL_TYPES = frozenset({TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP})


def list_config_resources(
    broker: ImageAccess, request: ListConfigResourcesRequest, context: RequestContext
) -> Steps[ListConfigResourcesResponse]:
    known = _ALL_TYPES if context.version >= 1 else frozenset({CLIENT_METRICS})
    wanted = frozenset(request.resource_types) or known
    if not wanted <= known:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = broker.image
    found = []
    if GROUP in wanted:
        for number, (kind, name) in enumerate(image.configs):
            if kind == GROUP:
                found.append(ConfigResource(resource_type=GROUP, resource_name=name))
            if not number % _PAUSE_AFTER:
                yield
    nodes = sorted(endpoints_on(image, context.listener, fenced=True))
    for kind in (LOGGER, BROKER):
        if kind in wanted:
            found += [ConfigResource(resource_type=kind, resource_name=str(node)) for node in nodes]
    if TOPIC in wanted:
        for number, name in enumerate(image.topics):
            found.append(ConfigResource(resource_type=TOPIC, resource_name=name))
            if not number % _PAUSE_AFTER:
                yield
    return ListConfigResourcesResponse(config_resources=found)
