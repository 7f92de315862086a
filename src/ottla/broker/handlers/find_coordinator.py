"""FindCoordinator (10): which broker coordinates a group or a transactional id.

The first request of a kind creates the topic of its coordinator. Keys of type 0 are groups, those of type 1
transactional ids.

Version notes. 0 to 3 have one key and an error message, "NONE" if there is no error; from 4 on there are
several keys, and the message is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ottla.broker.client_view import endpoint_of
from ottla.broker.dispatch import RequestContext
from ottla.broker.internal_topics import make_offsets_topic, make_transaction_topic
from ottla.broker.ports import (
    ChannelAccess,
    ClientLogging,
    Configuration,
    GroupAccess,
    ImageAccess,
    ImageFollowing,
    SelfFencing,
    SlicedWork,
    TransactionAccess,
)
from ottla.broker.request_scheduler import Steps
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.coordinator.partitioning import partition_of
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP, TRANSACTION, SHARE = 0, 1, 2
_BATCHED_SINCE = 4
_TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTION_TOPIC}


_Find = Callable[[str], Coordinator]


class CoordinatorLookup(
    ChannelAccess,
    ClientLogging,
    Configuration,
    GroupAccess,
    ImageAccess,
    ImageFollowing,
    SelfFencing,
    SlicedWork,
    TransactionAccess,
    Protocol,
):
    """The first lookup creates the topic that says where coordinators are."""


def find_coordinator(
    broker: CoordinatorLookup, request: FindCoordinatorRequest, context: RequestContext
) -> Steps[FindCoordinatorResponse] | Coroutine[Any, Any, FindCoordinatorResponse]:
    topic = _TOPICS.get(request.key_type)
    if topic is not None and topic not in broker.image.topics:
        return _make_topic_first(broker, request, context)
    return _answer(broker, request, context)


async def _make_topic_first(
    broker: CoordinatorLookup, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    try:
        await (make_offsets_topic if request.key_type == GROUP else make_transaction_topic)(broker)
    except ApiError as error:
        code = error.code
        return await broker.in_slices(_response(request, context, lambda key: _none(key, code)), context)
    return await broker.in_slices(_answer(broker, request, context), context)


def _answer(
    broker: CoordinatorLookup, request: FindCoordinatorRequest, context: RequestContext
) -> Steps[FindCoordinatorResponse]:
    topic = _TOPICS.get(request.key_type)
    if topic is not None:
        return _response(request, context, lambda key: _coordinator(broker, topic, key, context.listener))
    text = ErrorCode.INVALID_REQUEST.text if request.key_type != SHARE else ""
    return _response(request, context, lambda key: _none(key, ErrorCode.INVALID_REQUEST, text))


def _coordinator(broker: CoordinatorLookup, topic_name: str, key: str, listener: str) -> Coordinator:
    image = broker.image  # what the coordinator knows may be a little older
    topic = image.topics.get(topic_name)
    if topic is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
    node = image.brokers.get(leader)
    endpoint = endpoint_of(node, listener) if node is not None and not node.fenced else None
    if node is None or endpoint is None or leader == broker.fenced_leader:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=node.id, host=endpoint.host, port=endpoint.port)


def _none(key: str, code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)


def _response(
    request: FindCoordinatorRequest, context: RequestContext, find: _Find
) -> Steps[FindCoordinatorResponse]:
    if context.version >= _BATCHED_SINCE:
        coordinators = []
        for key in request.coordinator_keys:
            coordinators.append(find(key))
            yield
        return FindCoordinatorResponse(coordinators=coordinators)
    found = find(request.key)
    code = error_of(found.error_code)
    return FindCoordinatorResponse(
        error_code=code,
        error_message=code.text if code else "NONE",
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )
