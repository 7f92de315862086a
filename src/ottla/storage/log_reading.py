"""Reading a log: slices of its files from an offset on, and records found by their time.

A part of `Log`. Nothing is copied and no batch is opened, except where a record is looked for by its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.damaged_segment import DamagedSegment
from ottla.storage.failures import segment_damaged
from ottla.storage.log_state import LogState
from ottla.storage.results import FileSlice, OffsetAndTime
from ottla.storage.scan import Damaged
from ottla.storage.time_search import TimeSearch
from ottla.storage.transaction_index import AbortedTransaction


class LogReading(LogState):
    """The calls of consumers and followers."""

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True, *, wait: bool = True
    ) -> FileSlice | None:
        """Batches from the one that holds `offset` on, all below `limit_offset`, about `max_bytes` of them.

        The slice begins with the whole first batch, even when that alone is larger than `max_bytes` (without
        `at_least_one` the answer is then None), and may end within a batch. None when there is nothing at or
        after `offset` below the limit. OFFSET_OUT_OF_RANGE outside of the log. NotInMemory when the disk
        would have to be waited for and `wait` is False.
        """
        if self.failure is not None:
            raise self.failure
        end_offset = self.end_offset
        if offset < self.log_start_offset or offset > end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {offset} is not between {self.log_start_offset} and {end_offset}",
            )
        if offset >= limit_offset or offset == end_offset:
            return None
        try:
            return self._row.slice(
                offset, max_bytes, limit_offset, end_offset, at_least_one, wait, self.may_have_gaps
            )
        except DamagedSegment as found:
            raise self._go_offline(segment_damaged(self.name, found.path, found.damage)) from found
        except OSError as problem:
            raise self._refused("read", problem) from problem

    def load_active_transactions(self) -> None:
        """While the log is opened."""
        self._row.aborted.load_active()

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with offsets from `start` to before `end`, by their markers."""
        if not self._row.aborted:
            return []
        with self._guard("read"):
            return list(self._row.aborted.between(start, end))

    def aborted_in(
        self, offset: int, records: FileSlice, *, wait: bool = True
    ) -> Sequence[AbortedTransaction]:
        """The aborted transactions that a reader from `offset` on may meet in a slice that was just read.

        They may be very many. They stay as they are, whatever happens to the log. NotInMemory when reading
        them would take long and `wait` is False."""
        if not self._row.aborted:
            return []
        with self._guard("read"):
            return self._row.aborted.in_slice(offset, records, self.end_offset, wait=wait)

    def offset_for_timestamp(self, timestamp: int) -> OffsetAndTime | None:
        """The first record at or after the log's start whose timestamp is at least `timestamp`. May block
        for long: on the event loop, take `searches_since` and run them one by one."""
        return self._first(self.searches_since(timestamp))

    def max_timestamp(self) -> OffsetAndTime | None:
        """The first record that carries the largest timestamp of the log. May block for long, too."""
        return self._first(self.searches_newest())

    def _first(self, searches: Iterator[TimeSearch | None]) -> OffsetAndTime | None:
        for search in searches:
            found = None if search is None else self.run_search(search)
            if found is not None:
                return found
        return None

    def searches_since(self, timestamp: int) -> Iterator[TimeSearch | None]:
        """Where to look for the first record with at least that timestamp, one place after the other.

        None stands for a place that need not be looked at. Each step takes a moment, on the event loop.
        """
        return self._guarded(self._row.searches_since(timestamp, self.log_start_offset, self.config))

    def searches_newest(self) -> Iterator[TimeSearch | None]:
        """Where to look for the record with the largest timestamp."""
        return self._guarded(self._row.searches_newest(self.config))

    def _guarded(self, searches: Iterator[TimeSearch | None]) -> Iterator[TimeSearch | None]:
        while True:
            self._check_online()
            with self._guard("read"):
                try:
                    search = next(searches)
                except StopIteration:
                    return
            yield search if search is None else search._replace(truncations=self.truncations)

    def run_search(
        self,
        search: TimeSearch,
        *,
        pause: Callable[[], object] | None = None,
        only_small: bool = False,
        is_late: Callable[[], bool] | None = None,
    ) -> OffsetAndTime | None:
        """What is found there, if anything. In any thread; see `TimeSearch.run`."""
        try:
            return search.run(pause=pause, only_small=only_small, is_late=is_late)
        except Damaged as damage:
            if search.truncations != self.truncations:
                raise ApiError(
                    ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.name} was truncated while it was searched"
                ) from damage
            raise self._go_offline(segment_damaged(self.name, search.path, damage)) from damage
        except OSError as problem:
            raise self._refused("read", problem) from problem
