"""Reads and writes the small files of a data folder: checkpoints of offsets, ids.

A checkpoint of offsets that is damaged or missing is reported and read as empty: a start then checks more of
the logs. Kafka's format has no checksum, so the checksums stand in a file of their own (`checkpoint-sums`).
Checkpoints are written by chores, deletions and truncations, from several threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ottla.storage.checkpoints import (
    CHECKPOINT_SUMS,
    META,
    META_KEYS,
    PARTITION_METADATA,
    CheckpointSums,
    TopicPartition,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
    encode_offsets,
    encode_partition_metadata,
    encode_properties,
)
from ottla.storage.files import Disk
from ottla.storage.leader_epochs import CorruptCheckpoint

logger = logging.getLogger(__name__)

BOOT_ID_FILE = ".boot-id"
NO_TOPIC_ID = bytes(16)


class DirectoryCheckpoints:
    """The files of one data folder. All methods block on the disk."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._sums = CheckpointSums()
        self._sums_are_current = True
        self._written: dict[str, bytes] = {}
        self._writing = threading.Lock()

    # -- offsets -------------------------------------------------------------------------------------

    def read_sums(self, *, are_current: bool) -> None:
        """Read the checksums of the other files.

        Where they are not `current`, because the power was lost or another program wrote the files, they do
        not count now, and their file is removed so that they do not count at the next start either.
        """
        self._sums_are_current = are_current
        try:
            self._sums = CheckpointSums.decode(self._disk.read(self._path / CHECKPOINT_SUMS))
        except FileNotFoundError:
            pass
        except CorruptCheckpoint as damage:
            logger.warning("%s is damaged (%s)", self._path / CHECKPOINT_SUMS, damage)
        if not are_current:
            self._disk.remove(self._path / CHECKPOINT_SUMS)

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """The offsets of a checkpoint; none when it is missing or damaged."""
        path = self._path / name
        try:
            data = self._disk.read(path)
            if not self._sums_are_current:
                self._sums.forget(name)
            elif not self._sums.fits(name, data):
                raise CorruptCheckpoint("its checksum is wrong")
            offsets = decode_offsets(data)
            self._written[name] = data
            return offsets
        except FileNotFoundError:
            if self._sums.knows(name):
                logger.warning("%s is missing; going without it", path)
        except CorruptCheckpoint as damage:
            logger.warning("%s is damaged (%s); going without it", path, damage)
        return {}

    def write_offsets(self, name: str, offsets: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Write what `offsets` finds. One writer at a time, or older offsets could replace newer ones."""
        with self._writing:
            data = encode_offsets(offsets())
            if self._written.get(name) != data:
                # First, so that a process killed between the two leaves a sum for whichever file is there.
                self._sums.note(name, data)
                self._disk.replace(self._path / CHECKPOINT_SUMS, self._sums.encode(), sync=False)
                self._disk.replace(self._path / name, data, sync=True)
                self._written[name] = data

    # -- ids -----------------------------------------------------------------------------------------

    def read_boot_id(self) -> str:
        """In which run of the machine the folder was last used; empty when it is not known."""
        try:
            return self._disk.read(self._path / BOOT_ID_FILE).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def write_boot_id(self, boot_id: str) -> None:
        if self.read_boot_id() != boot_id:
            self._disk.replace(self._path / BOOT_ID_FILE, boot_id.encode(), sync=True)

    def forget_boot_id(self) -> None:
        """Without a sync, which would fail as well: a start in the same run of the machine sees it."""
        self._disk.remove(self._path / BOOT_ID_FILE)

    def read_meta(self) -> dict[str, str]:
        path = self._path / META
        try:
            found = decode_properties(self._disk.read(path))
        except FileNotFoundError:
            return {}
        except CorruptCheckpoint as damage:
            raise CorruptCheckpoint(f"{path} {damage}") from damage
        missing = [key for key in META_KEYS if key not in found]
        if missing:
            raise CorruptCheckpoint(f"{path} has no {' and no '.join(missing)}")
        return found

    def write_meta(self, values: Mapping[str, str]) -> None:
        self._disk.replace(self._path / META, encode_properties(values), sync=True)

    def read_topic_id(self, folder: Path) -> bytes:
        """The id of the topic that a partition's folder belongs to."""
        try:
            return decode_partition_metadata(self._disk.read(folder / PARTITION_METADATA))
        except FileNotFoundError:
            return NO_TOPIC_ID
        except CorruptCheckpoint as damage:
            logger.warning("%s: %s", folder / PARTITION_METADATA, damage)
            return NO_TOPIC_ID

    def write_topic_id(self, folder: Path, topic_id: bytes) -> None:
        self._disk.replace(folder / PARTITION_METADATA, encode_partition_metadata(topic_id), sync=False)
