"""ListTransactions: the transactional ids that a broker coordinates.

Versions: 1 brought the filter by duration (KIP-994), 2 the regular expression for ids (KIP-1152).
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string


class ListTransactionsRequest(Request, api_key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = array(string)  # empty: all
    producer_id_filters: list[int] = array(int64)  # empty: all
    duration_filter: int = int64(-1, versions="1+")  # running longer than this; negative: all
    transactional_id_pattern: str | None = string(None, versions="2+", nullable="2+")


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Response, api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
