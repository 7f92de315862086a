"""AddOffsetsToTxn: the offsets of a group become part of a transaction, before TxnOffsetCommit writes them.

The coordinator adds the partition of `__consumer_offsets` that the group belongs to.

Versions: 2 brought PRODUCER_FENCED, 3 the flexible encoding, 4 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, int64, string


class AddOffsetsToTxnRequest(Request, api_key=25, versions="0-4", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
