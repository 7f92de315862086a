"""Requests that only the controller can answer: every broker takes them, and forwards them if it is not it.

`FORWARDED` is the table of these APIs. At the active controller their handlers run as any other. Elsewhere
the request goes to the controller as it came (`controller_channel`), which runs the same handler with a
`ForwardedContext`, and its answer goes to the client when this broker has taken over what was done. Without
a controller each item of the request is refused with NOT_CONTROLLER; with REQUEST_TIMED_OUT if the
controller may have carried the request out.

Log levels belong to the process that was asked: they never leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from types import GeneratorType
from typing import Any, Protocol

from ottla.broker.connection import Connection
from ottla.broker.dispatch import Handler, RequestContext
from ottla.broker.handlers.configs import (
    LOGGER,
    ConfigAdministration,
    alter_configs,
    incremental_alter_configs,
)
from ottla.broker.handlers.elections import elect_leaders, refuse_election
from ottla.broker.handlers.quorum import (
    QuorumDescription,
    describe_quorum,
    quorum_nodes,
    refuse_features,
    refuse_quorum,
    refuse_unregistering,
    unregister_broker,
    update_features,
)
from ottla.broker.handlers.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
    refuse_listing,
    refuse_reassignments,
)
from ottla.broker.handlers.topics import TopicAdministration, create_partitions, create_topics, delete_topics
from ottla.broker.ports import SlicedWork
from ottla.completion import Completion
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ApiError
from ottla.protocol.frames import RequestHeader
from ottla.protocol.messages import alter_configs as replacing
from ottla.protocol.messages import incremental_alter_configs as incremental
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from ottla.protocol.messages.forward import ForwardRequest


class ForwardedContext(RequestContext):
    """A request that another broker has passed on for its client."""

    __slots__ = ("_envelope",)

    def __init__(self, envelope: ForwardRequest, connection: Connection) -> None:
        key, version = envelope.request_key, envelope.request_version
        header = RequestHeader(key, version, 0, envelope.client_id, 0)
        super().__init__(APIS[key], header, connection, len(envelope.request))
        self._envelope = envelope

    @property
    def address(self) -> str:
        return self._envelope.client_address or self.connection.address

    @property
    def peer(self) -> str:
        return f"{self._envelope.client_address or 'itself'} of broker {self._envelope.broker_id}"

    @property
    def forwarded_by(self) -> int | None:
        return self._envelope.broker_id


class ForwardingPorts(TopicAdministration, ConfigAdministration, QuorumDescription, Protocol):
    """What the handlers behind it use; they have the way to the controller, too."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    handler: Handler[Any]
    """Answers at the controller."""
    refuse: Callable[[Any, int, ApiError], Any]
    """(request, version, error) -> the response that refuses everything."""

    def __call__(self, broker: ForwardingPorts, request: Any, context: RequestContext) -> Any:
        """The handler of every broker."""
        if broker.controller.active:
            return self.handler(broker, request, context)
        return self.forward(broker, request, context)

    async def forward(self, broker: ForwardingPorts, request: Any, context: RequestContext) -> Any:
        try:
            return await broker.channel.forward(
                request,
                context.version,
                client_id=context.client_id,
                client_address=context.address,
                here=partial(self.answer, broker, request, context),
            )
        except ApiError as error:
            return self.refuse(request, context.version, error)

    async def answer(self, broker: SlicedWork, request: Any, context: RequestContext) -> Any:
        """What the handler answers here, in whichever way it does."""
        response = self.handler(broker, request, context)
        if iscoroutine(response):
            response = await response
        if isinstance(response, Completion):
            response = await response.as_future()
        if isinstance(response, GeneratorType):
            response = await broker.in_slices(response, context)
        return response


class _ForwardedLogLevels(Forwarded):
    """IncrementalAlterConfigs, whose log levels are set here and the rest at the controller."""

    __slots__ = ()

    def __call__(self, broker: ForwardingPorts, request: Any, context: RequestContext) -> Any:
        loggers = sum(resource.resource_type == LOGGER for resource in request.resources)
        if broker.controller.active or (loggers and loggers == len(request.resources)):
            return self.handler(broker, request, context)
        return self._in_two(broker, request, context) if loggers else self.forward(broker, request, context)

    async def _in_two(
        self,
        broker: ForwardingPorts,
        request: incremental.IncrementalAlterConfigsRequest,
        context: RequestContext,
    ) -> incremental.IncrementalAlterConfigsResponse:
        here, there = (
            incremental.IncrementalAlterConfigsRequest(
                resources=[each for each in request.resources if (each.resource_type == LOGGER) == is_here],
                validate_only=request.validate_only,
            )
            for is_here in (True, False)
        )
        forwarded = iter((await self.forward(broker, there, context)).responses)
        done = iter((await self.answer(broker, here, context)).responses)
        return incremental.IncrementalAlterConfigsResponse(
            responses=[
                next(done if resource.resource_type == LOGGER else forwarded)
                for resource in request.resources
            ]
        )


class _ForwardedQuorum(Forwarded):
    """DescribeQuorum, whose addresses are those of the listener that the client came in by."""

    __slots__ = ()

    async def __call__(
        self, broker: ForwardingPorts, request: DescribeQuorumRequest, context: RequestContext
    ) -> DescribeQuorumResponse:
        response: DescribeQuorumResponse = await (
            self.answer(broker, request, context)
            if broker.controller.active
            else self.forward(broker, request, context)
        )
        if any(each.current_voters for topic in response.topics for each in topic.partitions):
            response.nodes = quorum_nodes(broker.image, context.listener)
        return response


def _refuse_creation(request: CreateTopicsRequest, version: int, error: ApiError) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )


def _refuse_deletion(request: DeleteTopicsRequest, version: int, error: ApiError) -> DeleteTopicsResponse:
    code, message = error.code, error.message
    if version < 6:
        results = [DeletableTopicResult(name=name, error_code=code) for name in request.topic_names]
    else:
        results = [
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message
            )
            for topic in request.topics
        ]
    return DeleteTopicsResponse(responses=results)


def _refuse_growth(
    request: CreatePartitionsRequest, version: int, error: ApiError
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )


def _refuse_replacement(
    request: replacing.AlterConfigsRequest, version: int, error: ApiError
) -> replacing.AlterConfigsResponse:
    return replacing.AlterConfigsResponse(
        responses=[
            replacing.AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _refuse_alteration(
    request: incremental.IncrementalAlterConfigsRequest, version: int, error: ApiError
) -> incremental.IncrementalAlterConfigsResponse:
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


FORWARDED: dict[int, Forwarded] = {
    19: Forwarded(create_topics, _refuse_creation),
    20: Forwarded(delete_topics, _refuse_deletion),
    33: Forwarded(alter_configs, _refuse_replacement),
    37: Forwarded(create_partitions, _refuse_growth),
    43: Forwarded(elect_leaders, refuse_election),
    44: _ForwardedLogLevels(incremental_alter_configs, _refuse_alteration),
    45: Forwarded(alter_partition_reassignments, refuse_reassignments),
    46: Forwarded(list_partition_reassignments, refuse_listing),
    55: _ForwardedQuorum(describe_quorum, refuse_quorum),
    57: Forwarded(update_features, refuse_features),
    64: Forwarded(unregister_broker, refuse_unregistering),
}
