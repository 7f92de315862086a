"""What opening a partition took, for the operator."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field


@dataclass
class RecoveryReport:
    """One partition's opening. Numbers are of this opening only."""

    partition: str
    clean: bool
    scanned_bytes: int = 0
    scanned_batches: int = 0
    truncated_bytes: int = 0
    replayed_batches: int = 0
    rebuilt_indexes: list[str] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    seconds: float = 0.0
    failure: str | None = None

    @property
    def is_remarkable(self) -> bool:
        """Whether anything but a plain opening happened."""
        return self.failure is not None or bool(
            self.scanned_bytes or self.truncated_bytes or self.rebuilt_indexes or self.removed_files
        )

    def log(self, logger: logging.Logger) -> None:
        """Damage as an error, what was lost or repaired as a warning, a scan as information, else nothing."""
        if self.failure is not None:
            logger.error("%s", self)
        elif self.truncated_bytes or self.rebuilt_indexes:
            logger.warning("%s", self)
        elif self.is_remarkable:
            logger.info("%s", self)
        else:
            logger.debug("%s", self)

    def __str__(self) -> str:
        if self.failure is not None:
            return self.failure
        parts = [
            f"opened after {'a clean stop' if self.clean else 'a crash'} in {self.seconds * 1000:.0f} ms"
        ]
        if self.scanned_bytes:
            parts.append(f"scanned {self.scanned_batches} batches, {self.scanned_bytes} bytes")
        if self.truncated_bytes:
            parts.append(f"cut off {self.truncated_bytes} bytes of an unfinished write")
        if self.replayed_batches:
            parts.append(f"read producers from {self.replayed_batches} batches")
        if self.rebuilt_indexes:
            parts.append(f"rebuilt {', '.join(self.rebuilt_indexes)}")
        if self.removed_files:
            parts.append(f"removed {', '.join(self.removed_files)}")
        return f"{self.partition}: {'; '.join(parts)}"
