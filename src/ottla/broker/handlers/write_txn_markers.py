"""WriteTxnMarkers (27): the coordinator of a transaction tells the leaders of its partitions how it ended.

Brokers send it to each other. Clients may send it as well: tools abort transactions with it that no
coordinator knows any more (`ottla transaction abort --partition`, `kafka-transactions.sh abort`).
"""

from __future__ import annotations

from ottla.broker.dispatch import RequestContext
from ottla.broker.marker_writing import MarkerWriting, marker_steps
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse


def write_txn_markers(
    broker: MarkerWriting, request: WriteTxnMarkersRequest, context: RequestContext
) -> Steps[WriteTxnMarkersResponse | Completion[WriteTxnMarkersResponse]]:
    return marker_steps(broker, request)
