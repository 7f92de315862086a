"""How the last run left the data folder: the marker of a clean stop, and the list of what each log holds.

A clean stop leaves the list (`segment_list`) and Kafka's marker, `.kafka_cleanshutdown`. A start believes
the list only if nothing else has changed the logs since. Apache Kafka may use the folder between two runs of
Ottla: it removes the marker when it starts and writes its own when it stops, and leaves the list alone. So
the list has an id, and the marker says which list it belongs to, in a field that Kafka ignores. A list
without its marker is out of date, and so are the checksums of the checkpoints.

A start renames the marker, so that a crash from then on is an unclean stop. Under its other name it still
shows that the list is ours, because the list is needed for longer. A start that is interrupted is followed
by another one that has to compare as well. A log that is found damaged has to be found damaged by every
start until it is mended, so its entry stays in the list while the folder is open.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from ottla.storage.checkpoints import CLEAN_SHUTDOWN, TopicPartition, decode_list_id, encode_clean_shutdown
from ottla.storage.files import Disk
from ottla.storage.leader_epochs import CorruptCheckpoint
from ottla.storage.segment_list import SEGMENTS, LogFiles, decode, encode

logger = logging.getLogger(__name__)

OPENED = ".clean-stop-opened"
"""The marker before the stop is complete, and after the next start has begun."""


class CleanStop:
    """The marker and the list of one data folder. All methods block on the disk."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.was_clean = False
        """Whether the last program that used the folder stopped cleanly, be it Ottla or Kafka."""
        self.is_ours = True
        """False when another program has used the folder since Ottla did."""
        self.logs: dict[TopicPartition, LogFiles] = {}
        """What the logs held when they were closed; of the logs that are in use nothing after `opened`."""
        self._path = path
        self._disk = disk
        self._list_id = ""

    def begin(self, names: Collection[str]) -> None:
        """Read how the folder was left, in which there are files of these `names`. From here on a crash is
        an unclean stop."""
        self.was_clean = CLEAN_SHUTDOWN in names
        if self.was_clean:
            self._disk.rename(self._path / CLEAN_SHUTDOWN, self._path / OPENED)
            self._disk.sync_folder(self._path)
        list_id = None
        if self.was_clean or OPENED in names:
            list_id = self._read_marker()
            self.is_ours = list_id is not None
        self._read_list(list_id)

    def _read_marker(self) -> str | None:
        """The id of the list that the marker belongs to; None when it is not ours."""
        path = self._path / OPENED
        try:
            return decode_list_id(self._disk.read(path))
        except OSError as problem:
            logger.warning("%s cannot be read: %s", path, problem)
            return None

    def _read_list(self, expected_id: str | None) -> None:
        path = self._path / SEGMENTS
        try:
            list_id, logs = decode(self._disk.read(path))
        except FileNotFoundError:
            if self.was_clean and self.is_ours:
                logger.warning("%s is missing; a missing segment may go unnoticed", path)
        except CorruptCheckpoint as damage:
            logger.warning("%s is damaged (%s); going without it", path, damage)
        else:
            if list_id == expected_id:
                self._list_id, self.logs = list_id, logs
            else:
                self.is_ours = False
                logger.warning(
                    "%s is ignored: another program has used the folder since it was written", path
                )

    def opened(self, offline: Collection[TopicPartition]) -> None:
        """All logs have been compared. Those that are not `offline` will not be any more what they were."""
        self.logs = {key: log for key, log in self.logs.items() if key in offline}
        if self.logs:
            self._disk.replace(self._path / SEGMENTS, encode(self._list_id, self.logs), sync=True)
            return
        # A loss of power must not bring the list back: it would be believed about logs that have changed.
        self._list_id = ""
        self._disk.remove(self._path / SEGMENTS)
        self._disk.remove(self._path / OPENED)
        self._disk.sync_folder(self._path)

    def finish(self, closed: Mapping[TopicPartition, LogFiles], broker_epoch: int) -> None:
        """Leave what the next start needs: all logs were `closed` cleanly, and none is offline."""
        # The same id as before: the list that is there counts until the new one is there.
        self._list_id = self._list_id or uuid.uuid4().hex
        marker = encode_clean_shutdown(broker_epoch, self._list_id)
        self._disk.replace(self._path / OPENED, marker, sync=True)
        self._disk.replace(self._path / SEGMENTS, encode(self._list_id, closed), sync=True)
        self._disk.rename(self._path / OPENED, self._path / CLEAN_SHUTDOWN)
        self._disk.sync_folder(self._path)
