"""The progress of a stream shown as the offsets of a consumer group, so that lag is seen by every tool.

Spark's checkpoint says where a stream goes on; the group only shows it. So a commit never holds a stream up
and never ends it: it is sent and not waited for, its answer is looked at when the next one is due, and what
goes wrong is said and tried again later. `settle` waits for the answer, for the moment when a stream has
nothing better to do or is about to end.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from ottla.pipeline.topics.options import Place, SourceOptions
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
)
from ottla.protocol_client.group_offsets import commit_request
from ottla.protocol_client.groups import coordinator
from ottla.protocol_client.wire import BrokerUnreachable, Pending, UnsupportedByBroker, Wire, check

log = logging.getLogger("ottla.pipeline")

_NAMES_UP_TO = 9
"""The last version of OffsetCommit that names topics."""

REPEAT_AFTER = 600.0
"""Seconds after which everything is committed again, moved or not: brokers forget old offsets of a group that
has no members (offsets.retention.minutes), and a stream may be idle for longer."""

_AGAIN_AFTER = 0.2
_QUIET_FOR = 5.0
_REFUSED_FOR = 10.0
_HAS_MEMBERS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class GroupName:
    """A name for the group of a stream that was given none, which no other stream of this machine uses.

    Derived from what is read, so that it is the same after a restart. Of two streams that read the same, the
    second is called `...-2`; a lock that ends with the process says which names are in use.
    """

    def __init__(self, options: SourceOptions, folder: str | None = None) -> None:
        place = Path(folder or tempfile.gettempdir()) / f"ottla-groups-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        for number in itertools.count(1):
            self.group = options.group if number == 1 else f"{options.group}-{number}"
            mark = sha256(f"{options.bootstrap} {self.group}".encode()).hexdigest()[:32]
            self._lock = (place / mark).open("a")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._lock.close()

    def release(self) -> None:
        self._lock.close()


class GroupProgress:
    """Commits the offsets of one stream. Not for several threads."""

    def __init__(self, options: SourceOptions) -> None:
        self.enabled = options.commit_offsets
        self._name = GroupName(options) if self.enabled and not options.group_id else None
        self.group = self._name.group if self._name is not None else options.group
        self._options = options
        # Short limits: a coordinator that is away must not hold up the stream for long.
        self._wire = Wire(
            options.bootstrap, client_id=options.client_id, connect_timeout=2.0, request_timeout=5.0
        )
        self._coordinator: int | None = None
        self._wanted: dict[Place, int] = {}
        self._done: dict[Place, int] = {}
        self._sent: dict[Place, int] = {}
        self._pending: Pending | None = None
        self._not_before = 0.0
        self._all_sent_at = float("-inf")
        self._troubled_since: float | None = None
        self._told: set[str] = set()

    def close(self) -> None:
        self._wire.close()
        if self._name is not None:
            self._name.release()

    def submit(self, offsets: Mapping[Place, int]) -> None:
        """These offsets are done with. Returns at once, as a rule."""
        due = time.monotonic() - self._all_sent_at >= REPEAT_AFTER
        if due and self._pending is None:
            self._done = {}
        if self.enabled and (due or offsets != self._wanted):
            self._wanted = dict(offsets)
            self._advance(0.0)

    def settle(self, seconds: float) -> bool:
        """Wait until what was submitted is committed; False when it is not, in this time."""
        deadline = time.monotonic() + seconds
        while self.enabled and self._wanted != self._done:
            now = time.monotonic()
            if now >= deadline or self._not_before >= deadline:
                return False
            if self._pending is None and self._not_before > now:
                time.sleep(self._not_before - now)
            self._advance(deadline - now)
        return True

    def _advance(self, seconds: float) -> None:
        """Take the answer if it comes within so long; send what is wanted if nothing is on its way."""
        try:
            if self._pending is not None:
                if not self._wire.ready([self._pending], seconds):
                    return
                pending, self._pending = self._pending, None
                response = self._wire.receive(pending)
                for topic in response.topics:
                    for partition in topic.partitions:
                        check(partition.error_code)
                self._done = self._sent
                self._recovered()
            if self._wanted != self._done and time.monotonic() >= self._not_before:
                self._send()
        except (ApiError, BrokerUnreachable, UnsupportedByBroker) as error:
            self._failed(error)

    def _send(self) -> None:
        if self._coordinator is None:
            self._coordinator = coordinator(self._wire, self.group)
        # What is committed already is not said again: a stream of many partitions moves few at a time.
        changed = {p: offset for p, offset in self._wanted.items() if self._done.get(p) != offset}
        if not changed:
            self._done = self._wanted
            return
        request = commit_request(self.group, changed)
        if not self._done:
            self._all_sent_at = time.monotonic()
        connection = self._wire.connection(self._coordinator)
        version = connection.version_for(OffsetCommitRequest, _NAMES_UP_TO)
        self._pending = self._wire.send(request, version, self._coordinator)
        self._sent = self._wanted

    def _recovered(self) -> None:
        if self._told:
            log.warning("progress is committed to group %r again", self.group)
        self._troubled_since = None
        self._told.clear()

    def _failed(self, error: ApiError | BrokerUnreachable | UnsupportedByBroker) -> None:
        now = time.monotonic()
        self._coordinator = None
        self._pending = None
        self._done = {}
        began = self._troubled_since = self._troubled_since or now
        passing = isinstance(error, BrokerUnreachable) or (
            isinstance(error, ApiError) and error.code.retriable and error.code not in _HAS_MEMBERS
        )
        self._not_before = now + (_AGAIN_AFTER if passing else _REFUSED_FOR)
        if passing and now - began < _QUIET_FOR:
            return
        if isinstance(error, ApiError) and error.code in _HAS_MEMBERS:
            self._say(
                "members",
                f"group {self.group!r} has members of its own that read with it, so the progress of this "
                "stream cannot be committed to it and its lag does not show. The stream goes on. "
                "Give the stream a group of its own with kafka.group.id",
            )
        else:
            self._say(
                type(error).__name__,
                f"the progress of this stream cannot be committed to group {self.group!r} ({error}). "
                "The stream goes on and will try again; its lag does not show meanwhile",
            )

    def _say(self, kind: str, text: str) -> None:
        """Once, until it has worked again."""
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s", text)
