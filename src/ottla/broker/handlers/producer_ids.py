"""InitProducerId (22): an id for an idempotent producer.

A producer without a transactional id gets an id that no producer ever had, with epoch 0; what id and epoch it
had before (version 3) changes nothing, for there is no state to go on with. Ids come from blocks that the
controller gives out durably, so none is given twice, whatever crashes.

Transactions are not built yet. A client does not get as far as asking, since FindCoordinator is not offered
and it says so itself ("transactions are not supported by the broker"). One that asks all the same is answered
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: of the errors this response can carry it is the one that every client
takes as final at once and shows to its user. librdkafka retries all others for ever, UNSUPPORTED_VERSION
included, and retriable ones make the Java client hang until its timeout.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.ports import ChannelAccess, ClientLogging, Configuration
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger("ottla.producer_ids")

NONE = -1


class ProducerIdAllocation(ChannelAccess, ClientLogging, Configuration, Protocol):
    """Ids come from the controller."""


async def init_producer_id(
    broker: ProducerIdAllocation, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    error = _refusal(broker, request, context)
    if error is not None:
        return InitProducerIdResponse(error_code=error, producer_id=NONE, producer_epoch=NONE)
    try:
        producer_id = await broker.channel.next_producer_id()
    except ApiError as failure:
        text = "no producer id for %s: %s"
        address = context.connection.address
        broker.client_log.warning(logger, address, text, context.peer, failure.message)
        # Retriable for every client, which NOT_CONTROLLER and a storage error are not in this response.
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=error, producer_id=NONE, producer_epoch=NONE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal(
    broker: ProducerIdAllocation, request: InitProducerIdRequest, context: RequestContext
) -> ErrorCode | None:
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is None:
        return None
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not 0 < request.transaction_timeout_ms <= broker.config["transaction.max.timeout.ms"]:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    broker.client_log.warning(
        logger,
        context.connection.address,
        "%r asks for transactional id %s: transactions are not supported yet",
        context.connection,
        shown(request.transactional_id),
    )
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
