"""EndTxn: a producer commits or aborts its transaction.

Versions: 2 brought PRODUCER_FENCED, 3 the flexible encoding, 4 TRANSACTION_ABORTABLE, 5 the id and epoch that
the producer goes on with, since the epoch is raised with each transaction (KIP-890, part 2).
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, boolean, int16, int32, int64, string


class EndTxnRequest(Request, api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1, versions="5+")
    producer_epoch: int = int16(-1, versions="5+")
