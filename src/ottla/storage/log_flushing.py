"""Bringing a log to the disk: when a flush is due, the flush itself, and a clean close.

A part of `Log`. `flush` may run in another thread beside appends. It captures where the log ends, syncs, and
only then moves the recovery point: what lies before it has reached the disk. `flushing` knows the files.
"""

from __future__ import annotations

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.log_config import FOREVER
from ottla.storage.log_state import LogState


class LogFlushing(LogState):
    """The calls of threads that flush, and of a stop."""

    def flush_due(self) -> bool:
        """Whether the topic wants a flush now, by flush.messages or flush.ms."""
        unflushed = self.end_offset - self.recovery_point
        if unflushed <= 0 or self.failure is not None:
            return False
        config = self.config
        if unflushed >= config.flush_messages:
            return True
        return config.flush_ms < FOREVER and self._flushing.since_last_ms() >= config.flush_ms

    def flush_worthwhile(self) -> bool:
        """Whether a flush that no request waits for would spare the next recovery a long scan."""
        if self.end_offset == self.recovery_point or self.failure is not None:
            return False
        return self._flushing.is_worthwhile(self.recovery_point)

    def flush(self) -> int:
        """Sync what is in the log now; returns the offset up to which it is safe. Blocks: for a thread."""
        with self._flushing.one_at_a_time:
            if self.end_offset > self.recovery_point:
                self._flush(with_state=self._flushing.state_is_due())
            return self.recovery_point

    def _flush(self, *, with_state: bool, closing: bool = False) -> None:
        with self._lock, self._guard("flush"):
            self._check_online()
            end_offset, truncations = self.end_offset, self.truncations
            captured = self._flushing.capture(
                self.recovery_point, end_offset, with_state=with_state, closing=closing
            )
        began = self._clock.monotonic()
        try:
            self._flushing.sync(captured)
        except OSError as problem:
            raise self._sync_failed(self.recovery_point, problem) from problem
        if self.flush_seconds is not None:
            self.flush_seconds.add(self._clock.monotonic() - began)
        with self._lock:
            if truncations == self.truncations:
                self.recovery_point = max(self.recovery_point, end_offset)

    @property
    def is_settled(self) -> bool:
        """Whether a clean close has nothing to write or sync, as of a log that is offline."""
        return self.failure is not None or self._flushing.nothing_to_do(self.recovery_point, self.end_offset)

    def write_all(self) -> None:
        """Write all that a clean close leaves. One sync of the file system follows, for many logs at once."""
        with self._lock:
            self._check_online()
            self._flushing.write_all(self.end_offset)

    def all_is_synced(self) -> None:
        """The whole file system has been synced since `write_all`, and nothing was appended meanwhile."""
        with self._lock:
            self._flushing.all_is_synced()
            self.recovery_point = self.end_offset

    def close(self, clean: bool = True) -> None:
        """Let go of all files. After a clean close the next start finds everything without a scan."""
        if clean and not self.is_settled:
            with self._flushing.one_at_a_time:
                self._flush(with_state=True, closing=True)
        self._row.let_go()
        self.failure = self.failure or ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is closed")
