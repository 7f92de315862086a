"""The files of a segment: opened when they are needed, closed behind its back, removed.

A broker has many more segments than descriptors, so `OpenSegments` closes files that were not used for a
while, and with them lets go of indexes that can be read again. `IndexedSegment` adds finding, `Segment`
writing.

The transaction index is here as well: unlike the other indexes it cannot be rebuilt from the segment alone.
The row of segments does that.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from ottla.storage.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from ottla.storage.files import Disk, File
from ottla.storage.index_files import write_entries
from ottla.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from ottla.storage.offset_index import CorruptIndex, OffsetIndex
from ottla.storage.open_segments import OpenSegments
from ottla.storage.results import NotInMemory
from ottla.storage.scan import LARGEST_OFFSET
from ottla.storage.time_index import TimeIndex
from ottla.storage.transaction_index import ENTRY_SIZE as TRANSACTION_ENTRY_SIZE
from ottla.storage.transaction_index import TransactionIndex

_TRANSACTIONS_AT_ONCE = 4096 * TRANSACTION_ENTRY_SIZE
"""Bytes of a transaction index that are decoded before other work of the event loop is done: two
milliseconds."""


class StoredSegment:
    """A segment with its files. `size` is where the next batch goes; nothing is read behind it."""

    __slots__ = (
        "_disk",
        "_file",
        "_finished_size",
        "_folder",
        "_index",
        "_open_segments",
        "_partial_transactions",
        "_remains",
        "_reserved",
        "_since_index",
        "_suffix",
        "_tail_last",
        "_tail_positions",
        "_tail_start",
        "_time_index",
        "_transactions",
        "_transactions_on_disk",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "in_use",
        "max_timestamp",
        "max_timestamp_offset",
        "sealed",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        base_offset: int,
        size: int,
        open_segments: OpenSegments,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        self._disk = disk
        self._suffix = suffix
        self._folder = folder
        self._open_segments = open_segments
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transactions: TransactionIndex | None = None
        self._partial_transactions: TransactionIndex | None = None  # the first entries of a large file
        self._transactions_on_disk = False  # there is a file, of which nothing has been read yet
        self._finished_size = -1  # how large the segment was when its index files were last finished
        self._since_index = 0
        self._remains = False  # a failed write left bytes behind `size` that could not be cut off yet
        self._reserved = 0  # up to here the disk was asked to reserve space
        self._tail_start = -1
        self._tail_last: array[int] | None = None
        self._tail_positions: array[int] | None = None
        self.base_offset = base_offset
        self.size = size
        self.created_ms = now_ms
        self.first_timestamp: int | None = None
        self.max_timestamp: int | None = None  # None: not looked up yet, -1: no record has one
        self.max_timestamp_offset = base_offset
        self.sealed = False
        self.in_use = False

    def __repr__(self) -> str:
        return f"Segment({self.path}, {self.size} bytes)"

    # -- files ---------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.path_of(LOG_SUFFIX)

    def path_of(self, suffix: str) -> Path:
        return self._folder / (file_name(self.base_offset, suffix) + self._suffix)

    def renamed_to(self, suffix: str) -> None:
        """Its files have another suffix behind their names now. Open descriptors stay good."""
        self._suffix = suffix

    @property
    def file(self) -> File:
        """The log file, opened when it is not open."""
        self.in_use = True
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path)
            self._open_segments.opened(self)
        return file

    def is_file(self, file: File) -> bool:
        """Whether this is the log file as it is open now."""
        return self._file is file

    def files_to_sync(self) -> list[File]:
        """Files that hold this segment, for a thread that flushes: opened aside, not counted, not kept."""
        files = [self._file or self._disk.open(self.path)]
        if self.sealed:
            indexes = self.path_of(INDEX_SUFFIX), self.path_of(TIME_INDEX_SUFFIX)
            files += [self._disk.open(path, create=True) for path in indexes]
            if self._transactions_on_disk:
                files.append(self._disk.open(self.path_of(TRANSACTION_INDEX_SUFFIX)))
        return files

    def close_file(self) -> None:
        """Let go of the descriptor and of indexes that can be read again from their files.

        An empty index of the active segment may have no file yet, so it stays: it takes next to no memory.
        """
        self._file = None
        index, time_index = self._index, self._time_index
        if index is not None and (
            index.refined or (index.written == len(index) and (index.written or self.sealed))
        ):
            self._index = None
        if (
            time_index is not None
            and time_index.written == len(time_index)
            and (time_index.written or self.sealed)
        ):
            self._time_index = None
        self._partial_transactions = None
        if self.sealed and self._transactions_on_disk:
            self._transactions = None

    def remove_files(self) -> None:
        for suffix in SUFFIXES:
            self._disk.remove(self.path_of(suffix))

    @property
    def index_bytes(self) -> int:
        """Memory that closing the file would give back."""
        index, transactions = self._index, self._transactions
        size = 0
        if index is not None:
            size = (len(index) if index.refined else index.written) * OFFSET_ENTRY_SIZE
        if transactions is not None and self.sealed:
            size += len(transactions) * TRANSACTION_ENTRY_SIZE
        return size

    # -- aborted transactions ------------------------------------------------------------------------

    @property
    def has_aborted(self) -> bool:
        """Whether a marker in this segment aborted a transaction, as far as is known without reading."""
        transactions = self._transactions
        return self._transactions_on_disk if transactions is None else len(transactions) > 0

    def found_transactions(self, on_disk: bool) -> None:
        """Whether there is a file of the transaction index."""
        self._transactions_on_disk = on_disk

    def forget_transactions(self) -> None:
        """The markers of this segment are going to be noted again, from the first one on."""
        self._transactions = TransactionIndex() if self._transactions_on_disk else None

    def load_transactions(self, end_offset: int = LARGEST_OFFSET) -> TransactionIndex:
        """The transaction index. CorruptIndex when its file is damaged or gone; it cannot be rebuilt from
        this segment alone."""
        transactions = self._transactions
        if transactions is not None:
            return transactions
        if not self._transactions_on_disk:
            return TransactionIndex()
        path = self.path_of(TRANSACTION_INDEX_SUFFIX)
        try:
            transactions = TransactionIndex.decode(self._disk.read(path), self.base_offset, end_offset)
        except FileNotFoundError:
            raise CorruptIndex(f"{path} is missing") from None
        return self._keep_transactions(transactions)

    def load_transactions_in_pieces(self, end_offset: int = LARGEST_OFFSET) -> TransactionIndex:
        """As `load_transactions`, on the event loop: a large file would take it too long. NotInMemory when
        there is more of it; the next call goes on from there."""
        if self._transactions is not None or not self._transactions_on_disk:
            return self.load_transactions(end_offset)
        path = self.path_of(TRANSACTION_INDEX_SUFFIX)
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            raise CorruptIndex(f"{path} is missing") from None
        size = file.size
        if size <= _TRANSACTIONS_AT_ONCE:
            return self.load_transactions(end_offset)
        partial, self._partial_transactions = self._partial_transactions, None
        if partial is None:
            partial, position = TransactionIndex(), 0
        else:
            position = partial.written * TRANSACTION_ENTRY_SIZE
            data = file.read_at(position, _TRANSACTIONS_AT_ONCE)
            partial.decode_more(data, self.base_offset, end_offset)
            position += len(data)
            if position >= size:
                return self._keep_transactions(partial)
        self._partial_transactions = partial
        raise NotInMemory(file, position, min(_TRANSACTIONS_AT_ONCE, size - position), gets_on=position > 0)

    def _keep_transactions(self, transactions: TransactionIndex) -> TransactionIndex:
        """They are read from their file."""
        self._transactions = transactions
        self._partial_transactions = None
        if self.sealed:
            _ = self.file  # so that an eviction lets go of both
            self._open_segments.index_loaded(self)
        return transactions

    def replace_transactions(self, transactions: TransactionIndex) -> None:
        """Take over a transaction index that was rebuilt, and write its file."""
        transactions.written = 0
        self._transactions = transactions
        self._write_transactions()

    def _write_transactions(self) -> list[File]:
        """Bring the file of the transaction index up to date; a segment without entries gets none."""
        transactions = self._transactions
        if transactions is None or not (len(transactions) or self._transactions_on_disk):
            return []
        path = self.path_of(TRANSACTION_INDEX_SUFFIX)
        file = write_entries(self._disk, path, transactions, TRANSACTION_ENTRY_SIZE)
        self._transactions_on_disk = True
        return [file]
