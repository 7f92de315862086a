"""Reading a log as a consumer of committed records does, and a plain model of what it should see."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.batches import headers
from ottla.protocol.records import Record, decode_batch
from ottla.storage.log import Log
from ottla.storage.transaction_index import AbortedTransaction
from ottla.storage.transaction_markers import read_control_record
from unit.storage.logs import MAX_SIZE


def read_committed(log: Log, start: int | None = None, *, max_bytes: int = 1000) -> list[bytes | None]:
    """The values that `committed_records` sees."""
    return [record.value for record in committed_records(log, start, max_bytes=max_bytes)]


def committed_records(log: Log, start: int | None = None, *, max_bytes: int = 1000) -> list[Record]:
    """What a consumer sees that fetches again and again, as Kafka's consumer picks records."""
    offset = log.log_start_offset if start is None else start
    limit = log.last_stable_offset(log.end_offset)
    seen: list[Record] = []
    while (found := log.read(offset, max_bytes, limit)) is not None:
        to_come = sorted(log.aborted_in(offset, found), key=lambda each: each.first_offset)
        aborted: set[int] = set()
        data = found.read()
        before = offset
        for position, header in headers(data):
            while to_come and to_come[0].first_offset <= header.last_offset:
                aborted.add(to_come.pop(0).producer_id)
            batch = memoryview(data)[position:]
            if header.is_control:
                marker = read_control_record(batch[: header.size])
                if marker is not None and not marker.is_commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                records = decode_batch(batch, max_size=MAX_SIZE)
                seen += [record for record in records if record.offset >= offset]
            offset = max(offset, header.next_offset)
        assert offset > before, "a slice must hold at least one whole batch"
    return seen


class Entry(NamedTuple):
    """One record of the model, or a marker."""

    offset: int
    producer: int  # -1: outside of a transaction
    value: bytes
    marker: bool | None = None  # True: it commits, False: it aborts


class Transactions:
    """What is in a log, in plain lists; every question is answered from the beginning."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def ended(self) -> tuple[list[tuple[AbortedTransaction, bool]], dict[int, int]]:
        """Each transaction with whether it was committed, and where the open ones begin, by producer."""
        opened: dict[int, int] = {}
        ended = []
        for entry in self.entries:
            if entry.marker is None:
                if entry.producer >= 0:
                    opened.setdefault(entry.producer, entry.offset)
            elif entry.producer in opened:
                first = opened.pop(entry.producer)
                stable = min(opened.values(), default=entry.offset + 1)
                ended.append((AbortedTransaction(entry.producer, first, entry.offset, stable), entry.marker))
        return ended, opened

    def aborted(self) -> list[AbortedTransaction]:
        return [transaction for transaction, committed in self.ended()[0] if not committed]

    def last_stable_offset(self, start: int, end: int) -> int:
        _, opened = self.ended()
        return max(min([end, *opened.values()]), start)

    def committed(self, start: int, end: int) -> list[bytes]:
        """The values from `start` to before `end` that are of no aborted transaction."""
        gone: set[int] = set()
        for transaction in self.aborted():
            gone.update(
                entry.offset
                for entry in self.entries
                if entry.producer == transaction.producer_id
                and transaction.first_offset <= entry.offset < transaction.last_offset
            )
        return [
            entry.value
            for entry in self.entries
            if entry.marker is None and start <= entry.offset < end and entry.offset not in gone
        ]
