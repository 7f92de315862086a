"""Tells the leaders of a transaction's partitions how it ended: WriteTxnMarkers, until all have said yes.

Where this broker leads, the markers are written at once, without a request. Each other leader gets one
request at a time; the markers of transactions that end meanwhile share the next one. What was refused, or
whose answer did not come, is sent again after a pause, to the leader of that moment: a marker that is written
twice changes nothing. A partition without a leader is waited for. One that does not exist any more needs no
marker; but an image that is old may not show a partition yet, so this counts only when the image is the
newest.

A leader that knows a higher epoch of the producer (INVALID_PRODUCER_EPOCH) has ended this transaction before:
no record of it can follow, so it counts as settled.

No marker is given up, whatever goes wrong: an error that nobody expects is logged, and it is sent again like
one that was refused. Otherwise its transaction would stay open, and readers of its partitions would wait.

The coordinator that sends markers is named in them by the epoch of its leadership, and leaders refuse one
that has been replaced. So a broker that does not know of that yet does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from ottla.broker.peers import Peers
from ottla.broker.portions import in_portions
from ottla.cluster.image import NO_LEADER, ClusterImage
from ottla.completion import Completion
from ottla.coordinator.transactions.endings import MarkersDue
from ottla.coordinator.transactions.transaction import TopicPartition
from ottla.peer.client import PeerUnreachable, UnsupportedByPeer
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

logger = logging.getLogger("ottla.transactions")

MARKERS = "markers"
"""The connections that markers are sent by."""
_CALL_SECONDS = 30.0
_TRANSACTIONS_AT_A_TIME = 500
_HERE_AT_A_TIME = 20
"""Partitions led here that get their markers before other work of the event loop is done."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

WriteMarkers = Callable[
    [WriteTxnMarkersRequest], WriteTxnMarkersResponse | Completion[WriteTxnMarkersResponse]
]


_PATIENT_ATTEMPTS = 8
"""After so many attempts, a few seconds, it is logged what a transaction waits for."""
_GONE = None


class _Part(NamedTuple):
    """Some partitions of a transaction that one broker leads."""

    due: MarkersDue
    partitions: list[TopicPartition]
    attempt: int


class TransactionMarkers:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], ClusterImage],
        peers: Callable[[], Peers],
        write_here: WriteMarkers,
        has_newest_image: Callable[[], Awaitable[bool]],
    ) -> None:
        """`write_here` writes markers to partitions that this broker leads."""
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._write_here = write_here
        self._has_newest_image = has_newest_image
        self._queues: dict[int, deque[_Part]] = {}  # by broker, while a task sends to it
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def send(self, due: MarkersDue) -> None:
        """Bring all its markers to their leaders; the coordinator hears of each by `due.settled`."""
        self._route(due, sorted(due.remaining), 0)

    async def stop(self) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- where to -----------------------------------------------------------------------------------------

    def _route(self, due: MarkersDue, partitions: Iterable[TopicPartition], attempt: int) -> None:
        if self._stopped or not due.is_wanted:
            return
        image = self._image()
        leaders: dict[int | None, list[TopicPartition]] = {}
        for each in partitions:
            leaders.setdefault(_leader(image, each), []).append(each)
        for leader, led in leaders.items():
            part = _Part(due, led, attempt)
            if leader is _GONE:
                self._start(self._settle_if_gone(part))
            elif leader == NO_LEADER:
                self._later(part, "there is no leader")
            elif leader == self._node_id:
                self._send_here(part)
            elif leader in self._queues:
                self._queues[leader].append(part)
            else:
                self._queues[leader] = deque([part])
                self._start(self._send_all(leader))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="transaction-markers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _later(self, part: _Part, why: str) -> None:
        if part.attempt == _PATIENT_ATTEMPTS:
            topic, index = part.partitions[0]
            logger.warning(
                "the transaction of %s waits until its marker is in %s-%d%s: %s",
                shown(part.due.transaction.transactional_id),
                topic,
                index,
                f" and {len(part.partitions) - 1} others" if len(part.partitions) > 1 else "",
                why,
            )
        pause = min(_FIRST_PAUSE * 2 ** min(part.attempt, 10), _LONGEST_PAUSE)
        asyncio.get_running_loop().call_later(pause, self._route, part.due, part.partitions, part.attempt + 1)

    async def _settle_if_gone(self, part: _Part) -> None:
        """These partitions are not in the image."""
        try:
            is_newest = await self._has_newest_image()
        except Exception:
            logger.exception("it cannot be found out which partitions exist; trying again")
            is_newest = False
        image = self._image()
        gone = [each for each in part.partitions if _leader(image, each) is _GONE]
        if is_newest and gone and part.due.is_wanted:
            part.due.settled(gone)
        left = [each for each in part.partitions if each in part.due.remaining]
        if left:
            self._later(part._replace(partitions=left), "it is not known whether the partition exists")

    # -- sending ------------------------------------------------------------------------------------------

    def _send_here(self, part: _Part) -> None:
        if len(part.partitions) <= _HERE_AT_A_TIME:
            self._write(part)
        else:
            self._start(self._write_in_portions(part))

    async def _write_in_portions(self, part: _Part) -> None:
        """Markers of many partitions, with other work of the event loop in between."""
        for some in in_portions(part.partitions, _HERE_AT_A_TIME):
            if self._stopped or not part.due.is_wanted:
                return
            self._write(part._replace(partitions=list(some)))
            await asyncio.sleep(0)

    def _write(self, part: _Part) -> None:
        parts = [part]
        try:
            response = self._write_here(_request(parts))
        except ApiError as error:
            self._refused(parts, str(error))
            return
        except Exception as error:  # noqa: BLE001 - it is logged, and the markers are sent again
            self._failed(parts, error)
            return
        if isinstance(response, Completion):
            response.then(
                lambda written: self._take(parts, written), lambda error: self._refused(parts, str(error))
            )
        else:
            self._take(parts, response)

    async def _send_all(self, broker_id: int) -> None:
        """Send what is due to one broker, until there is no more."""
        queue = self._queues[broker_id]
        try:
            while queue:
                parts: list[_Part] = []
                while queue and len(parts) < _TRANSACTIONS_AT_A_TIME:
                    part = queue.popleft()
                    if part.due.is_wanted:
                        parts.append(part)
                if parts:
                    await self._send_to(broker_id, parts)
        finally:
            del self._queues[broker_id]

    async def _send_to(self, broker_id: int, parts: list[_Part]) -> None:
        try:
            client = self._peers().client(broker_id, MARKERS)
            response = await client.call(_request(parts), timeout=_CALL_SECONDS)
        except (ApiError, PeerUnreachable, UnsupportedByPeer) as error:
            self._refused(parts, str(error))
        except Exception as error:  # noqa: BLE001 - it is logged, and the markers are sent again
            self._failed(parts, error)
        else:
            self._take(parts, response)

    def _failed(self, parts: list[_Part], error: Exception) -> None:
        logger.exception("markers of %d transactions could not be written; trying again", len(parts))
        self._refused(parts, repr(error))

    def _refused(self, parts: list[_Part], why: str) -> None:
        for part in parts:
            self._later(part, why)

    def _take(self, parts: list[_Part], response: WriteTxnMarkersResponse) -> None:
        """What a leader says of each marker."""
        said = {
            (marker.producer_id, topic.name, each.partition_index): each.error_code
            for marker in response.markers
            for topic in marker.topics
            for each in topic.partitions
        }
        for part in parts:
            producer_id = part.due.transaction.producer_id
            settled, left, why = [], [], ErrorCode.NONE
            for topic, index in part.partitions:
                code = said.get((producer_id, topic, index), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code in _SETTLED:
                    settled.append((topic, index))
                else:
                    left.append((topic, index))
                    why = error_of(code)
            if settled:
                part.due.settled(settled)
            if left:
                self._later(part._replace(partitions=left), why.name)


_SETTLED = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})


def _leader(image: ClusterImage, partition: TopicPartition) -> int | None:
    """The broker that leads it, NO_LEADER, or None when there is no such partition."""
    topic = image.topics.get(partition[0])
    if topic is None or partition[1] >= len(topic.partitions):
        return _GONE
    leader = topic.partitions[partition[1]].leader
    node = image.brokers.get(leader)
    return NO_LEADER if node is None or node.fenced else leader


def _request(parts: Iterable[_Part]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(markers=[_marker(part) for part in parts])


def _marker(part: _Part) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, index in part.partitions:
        topics.setdefault(topic, []).append(index)
    transaction = part.due.transaction
    return WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=transaction.is_commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ],
        coordinator_epoch=part.due.coordinator_epoch,
        transaction_version=transaction.client_version,
    )
