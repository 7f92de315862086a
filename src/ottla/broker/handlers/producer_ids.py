"""InitProducerId (22): the id and epoch under which a producer numbers its batches.

A producer without a transactional id gets an id that no producer ever had, with epoch 0; what id and epoch it
had before (version 3) changes nothing, for there is no state to go on with. Ids come from blocks that the
controller gives out durably, so none is given twice, whatever crashes.

A producer with a transactional id asks the coordinator of that id, and gets the id that belongs to it with
the next epoch. That fences the producer which used it before and aborts its transaction; until that is done
the answer is CONCURRENT_TRANSACTIONS, and the client asks again.

Version notes. Before 4, PRODUCER_FENCED is INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import responded
from ottla.broker.ports import ChannelAccess, ClientLogging, Configuration, TransactionAccess
from ottla.completion import Completion
from ottla.coordinator.transactions.transitions import Producer
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger("ottla.producer_ids")

NONE = -1


_FENCED_SINCE = 4


class ProducerIdAllocation(ChannelAccess, ClientLogging, Configuration, TransactionAccess, Protocol):
    """Ids come from the controller, epochs of transactional ids from their coordinator."""


def init_producer_id(
    broker: ProducerIdAllocation, request: InitProducerIdRequest, context: RequestContext
) -> (
    InitProducerIdResponse | Completion[InitProducerIdResponse] | Coroutine[Any, Any, InitProducerIdResponse]
):
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return _without_transactions(broker, context)
    if not request.transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    if not 0 < request.transaction_timeout_ms <= broker.config["transaction.max.timeout.ms"]:
        return _refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    def refused(error: ApiError) -> InitProducerIdResponse:
        if error.code is ErrorCode.PRODUCER_FENCED and context.version < _FENCED_SINCE:
            return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        return _refused(error.code)

    has_one = request.producer_id != NONE
    return responded(
        broker.transactions.initialize(
            request.transactional_id,
            request.transaction_timeout_ms,
            Producer(request.producer_id, request.producer_epoch) if has_one else None,
        ),
        lambda producer: InitProducerIdResponse(
            producer_id=producer.producer_id, producer_epoch=producer.epoch
        ),
        refused,
    )


async def _without_transactions(
    broker: ProducerIdAllocation, context: RequestContext
) -> InitProducerIdResponse:
    try:
        producer_id = await broker.channel.next_producer_id()
    except ApiError as failure:
        text = "no producer id for %s: %s"
        address = context.connection.address
        broker.client_log.warning(logger, address, text, context.peer, failure.message)
        # Retriable for every client, which NOT_CONTROLLER and a storage error are not in this response.
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
