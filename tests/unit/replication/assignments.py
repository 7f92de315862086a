"""What a controller decides about a partition, for tests of replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Assigned:
    leader: int = 1
    leader_epoch: int = 0
    replicas: tuple[int, ...] = (1,)
    isr: tuple[int, ...] = (1,)
    partition_epoch: int = 0

    def after(self, **changes: Any) -> Assigned:
        """The next decision."""
        return replace(self, partition_epoch=self.partition_epoch + 1, **changes)
