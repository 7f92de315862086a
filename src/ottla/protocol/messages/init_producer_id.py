"""InitProducerId: a producer asks for an id and an epoch, under which its batches are numbered.

Without a transactional id the producer gets a fresh id and is idempotent. With one it gets the id that
belongs to that name with the next epoch, which shuts out the producer that used it before and ends its
transaction.

Versions: 2 brought the flexible encoding, 3 the current id and epoch of a producer that wants to go on
after an error, 4 PRODUCER_FENCED, 5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, int64, string


class InitProducerIdRequest(Request, api_key=22, versions="0-5", flexible="2+"):
    transactional_id: str | None = string(nullable="0+")  # null: idempotent only
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(-1, versions="3+")  # the one it has; -1: none yet
    producer_epoch: int = int16(-1, versions="3+")


class InitProducerIdResponse(Response, api_key=22, versions="0-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1)
    producer_epoch: int = int16()
