"""A log that is compacted on demand."""

from __future__ import annotations

from typing import Any

from ottla.protocol.batches import BatchHeader, headers
from ottla.protocol.records import Record, encode_batch
from ottla.storage.cleaning.cleaner import Cleaner, clean_now
from unit.storage.logs import T0, Store

DAY = 24 * 3_600_000


class Compacted(Store):
    """A store whose log is compacted on demand."""

    def __init__(self, *arguments: Any, run_job: Any = None, **config: Any) -> None:
        super().__init__(*arguments, cleanup_policy=("compact",), **config)
        self.cleaner = Cleaner(self.directory, self.disk, self.clock, run_job=run_job)

    def write(self, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> None:
        """One batch of keys and values."""
        rows = [Record(n, T0 + n, key, value, []) for n, (key, value) in enumerate(pairs)]
        self.log.append(memoryview(encode_batch(rows, **options)), 0)

    def clean(self) -> bool:
        """All that was written, the active segment included."""
        self.log.roll()
        return clean_now(self.cleaner, self.log, self.log.end_offset)

    def batches(self) -> list[BatchHeader]:
        return [header for data in self.files(".log").values() for _, header in headers(data)]

    @property
    def state(self) -> Any:
        return self.cleaner.state(self.log)
