"""The names of the files in a partition's folder, as Kafka has them.

A segment's files carry its base offset in twenty digits; the suffix says which file it is. Further suffixes
behind that mark files that are not part of the log any more, or not yet.
"""

from __future__ import annotations

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
REPLACED_SUFFIX = ".replaced"  # before `.deleted`: compaction has put another segment in its place
CLEANED_SUFFIX = ".cleaned"  # behind the others: written by compaction, not yet part of the log
SWAP_SUFFIX = ".swap"  # whole and synced, about to take the place of others
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"
