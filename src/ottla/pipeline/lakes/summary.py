"""What a batch did to a lake, for progress lines and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LakeSummary:
    """What a batch wrote."""

    rows: int
    files: int
    bytes: int
    replaced: int = 0
    """Files of an earlier attempt at the same batch that were removed."""
    done_before: bool = False
    """The table had the batch already, so nothing was written."""
