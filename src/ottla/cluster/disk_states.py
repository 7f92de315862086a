"""What brokers have told the controller of their disks, in one term.

A broker is impaired while its disk is full or refuses work. It keeps what it has and serves reads, but others
should lead. A replica has failed when its log is offline or could not be made: it may lack records. Brokers
report both when they change and to each new controller (`broker/disk_reports.py`), so nothing of it is
stored. A broker that has just registered counts as healthy until it reports.
"""

from __future__ import annotations

from dataclasses import dataclass

Replica = tuple[bytes, int]
"""The id of a topic, and the number of a partition."""

NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DiskReport:
    impaired: bool = False
    """Its disk is full, or refuses to write or to read."""
    failed: frozenset[Replica] = frozenset()
    """Replicas of this broker without a sound log."""


HEALTHY = DiskReport()


class DiskStates:
    def __init__(self) -> None:
        self._reports: dict[int, DiskReport] = {}
        self._failed: dict[Replica, frozenset[int]] = {}
        self.impaired = NOBODY

    def __bool__(self) -> bool:
        """Whether any disk is not in order."""
        return bool(self._reports)

    def of(self, broker: int) -> DiskReport:
        return self._reports.get(broker, HEALTHY)

    def failed_at(self, topic_id: bytes, index: int) -> frozenset[int]:
        """The brokers whose replica of a partition has failed."""
        return self._failed.get((topic_id, index), NOBODY)

    def report(self, broker: int, report: DiskReport) -> bool:
        """Take over how the disk of a broker is. False when that was known."""
        if report == self.of(broker):
            return False
        if report == HEALTHY:
            del self._reports[broker]
        else:
            self._reports[broker] = report
        self.impaired = frozenset(b for b, each in self._reports.items() if each.impaired)
        self._failed = {}
        for number, each in self._reports.items():
            for replica in each.failed:
                self._failed[replica] = self._failed.get(replica, NOBODY) | {number}
        return True

    def forget(self, broker: int) -> bool:
        """It has left, or has registered anew. False when its disk was in order."""
        return self.report(broker, HEALTHY)
