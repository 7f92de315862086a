"""Where a pipeline remembers how far it is: one folder, and in it one for each stage.

    <root>/<stage>/spark/             Spark's own checkpoint: offsets, commits, state
    <root>/<stage>/spark/sources/     where each input began, and the ids of its topics
    <root>/<stage>/tables/            tables that are made of topics, and their versions (`tables`)
    <root>/<stage>/fingerprint.json   the stage's shape when that checkpoint was begun (`fingerprint.py`)
    <root>/<stage>/start.json         where the stage starts when Spark's checkpoint is empty, after a reset,
                                      and the queries it had before
    <root>/<stage>/lock               held by the driver that runs the stage
    <root>/<stage>/*.json             marks of other packages, such as which outputs are written

The root is a path or a URL that pyarrow and Spark both know (`file://`, `s3://`, `hdfs://`). Small files
change whole or not at all. The lock keeps two drivers on one machine apart; over a URL, and between machines
that mount the same folder without lock support, there is none: there the second driver is found out only
when Spark's own log refuses its next batch.

A reset is decided by one write of `start.json` that says "remove the rest": the next process that opens the
folder finishes the removal, so a crash in the middle never leaves half a checkpoint for Spark to start from.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.pipeline.durability import SparkFiles, mend
from ottla.pipeline.fingerprint import Change, Fingerprint, IncompatibleChange
from ottla.pipeline.folders import Folder, absolute, for_spark

__all__ = [
    "Change",
    "CheckpointError",
    "Checkpoints",
    "CommittedBatch",
    "Fingerprint",
    "IncompatibleChange",
    "StageBusy",
    "StageFolder",
]

_SPARK = "spark"
_START = "start.json"
_FINGERPRINT = "fingerprint.json"
_LOCK = "lock"
_SOURCES = "sources"
_OFFSETS_FILE = "ottla-{}.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VOID = "-"
"""What Spark writes for a source that has no offset yet."""


class CheckpointError(Exception):
    """The checkpoint folder cannot be used; the message says why and what to do."""


class StageBusy(CheckpointError):
    """Another driver on this machine runs the stage."""


@dataclass(frozen=True)
class CommittedBatch:
    """The last batch that Spark counts as done."""

    batch_id: int
    offsets: dict[str, Any]
    """Where each source continues, by source number ("0", "1"; names where Spark keeps names)."""
    watermark_ms: int
    """The watermark the batch ran with; 0 without one."""


class Checkpoints:
    """The folder of a pipeline."""

    def __init__(self, root: str | os.PathLike[str] | Folder) -> None:
        self._folder = root if isinstance(root, Folder) else Folder(root)
        self.root = self._folder.url

    def stage(self, name: str) -> StageFolder:
        """The folder of one stage. Nothing is made before something is written."""
        if not _NAME.fullmatch(name):
            raise CheckpointError(f"{name!r} cannot name a stage: letters, digits, '.', '_' and '-' can")
        return StageFolder(self._folder.below(name), name)

    def stages(self) -> list[str]:
        """Names of the stages that have a folder here."""
        return [
            entry.name for entry in self._folder.list() if entry.is_folder and _NAME.fullmatch(entry.name)
        ]


class StageFolder:
    """What is remembered about one stage."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self.name = name

    def __str__(self) -> str:
        return self._folder.url

    @property
    def spark_checkpoint(self) -> str:
        """The checkpoint location to give Spark. A removal that a reset began is finished first."""
        self._finish_reset()
        return for_spark(self._folder.below(_SPARK).url)

    def spark_files(self) -> SparkFiles | None:
        """To sync what Spark writes; None where the storage does so by itself."""
        return SparkFiles(self._folder.below(_SPARK).path) if self._folder.is_local else None

    def mend(self) -> None:
        """Remove what a crash of the machine has left unreadable in Spark's logs. No query may be running."""
        self._finish_reset()
        if self._folder.is_local:
            mend(self._folder.below(_SPARK).path)

    # Spark's own logs.

    def query_id(self) -> str | None:
        """The id Spark gave the query when it began this checkpoint; None before that."""
        self._finish_reset()
        data = self._folder.read(f"{_SPARK}/metadata")
        return str(json.loads(data)["id"]) if data else None

    def last_committed(self) -> CommittedBatch | None:
        """The last batch Spark counts as done, with the offsets it ended at; None before the first."""
        self._finish_reset()
        committed = self._batches("commits")
        if not committed:
            return None
        metadata, offsets = self._read_offsets(committed[-1])
        return CommittedBatch(committed[-1], offsets, int(metadata.get("batchWatermarkMs", 0)))

    def committed_offsets(self) -> dict[str, Any] | None:
        """Where each source continues after the last committed batch; None before the first."""
        last = self.last_committed()
        return None if last is None else last.offsets

    def offsets_of(self, batch_id: int) -> dict[str, Any] | None:
        """Where each source ends in this batch, committed or not; None when Spark has no record of it."""
        self._finish_reset()
        return self._read_offsets(batch_id)[1] if batch_id in self._batches("offsets") else None

    def table_folder(self, number: int) -> Folder:
        """Where the files of a table are that is made of a topic."""
        return self._folder.below(f"tables/{number}")

    def offsets_file(self, number: int) -> str:
        """Where our source writes down at which offsets this input began (the option offsetsFile)."""
        return f"{self._folder.below(_SPARK).url}/{_SOURCES}/{_OFFSETS_FILE.format(number)}"

    def started_at(self) -> dict[str, Any]:
        """The offsets each source began at: of our own source, and as Spark's connector writes them down."""
        self._finish_reset()
        found: dict[str, Any] = {}
        for entry in self._folder.list(f"{_SPARK}/{_SOURCES}", recursive=True):
            data = None if entry.is_folder else self._folder.read(f"{_SPARK}/{_SOURCES}/{entry.name}")
            if not data:
                continue
            if entry.name.endswith(".json"):
                found[entry.name] = json.loads(data).get("start")
            elif entry.name.endswith("/0"):
                # A zero byte for versions of Spark long gone, the version, the offsets.
                found[entry.name] = json.loads(data.lstrip(b"\0").partition(b"\n")[2])
        return found

    def _batches(self, log: str) -> list[int]:
        entries = self._folder.list(f"{_SPARK}/{log}")
        return sorted(int(entry.name) for entry in entries if entry.name.isdecimal() and entry.size > 0)

    def _read_offsets(self, batch_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
        name = f"{_SPARK}/offsets/{batch_id}"
        data = self._folder.read(name)
        if data is None:
            raise CheckpointError(
                f"{self} says that batch {batch_id} is done, but {name} is gone: the checkpoint was damaged."
                f" `ottla pipeline reset {self.name}` begins anew."
            )
        version, metadata, *sources = data.decode().splitlines()
        if version == "v1":
            named = [(str(number), text) for number, text in enumerate(sources)]
        elif version == "v2":
            named = [(name, text) for name, _, text in (line.partition(":") for line in sources)]
        else:
            raise CheckpointError(f"{self}: {name} has the unknown version {version!r}")
        return json.loads(metadata), {key: None if text == _VOID else json.loads(text) for key, text in named}

    # Small files of ours.

    def read_json(self, name: str) -> Any:
        """What was last written under this name, None when nothing was."""
        self._finish_reset()
        data = self._folder.read(name)
        return None if data is None else json.loads(data)

    def write_json(self, name: str, value: Any) -> None:
        """Writes a small file whole or not at all; it is on stable storage when this returns."""
        self._finish_reset()
        self._write(name, value)

    def _write(self, name: str, value: Any) -> None:
        self._folder.make(name.rpartition("/")[0])
        self._folder.write(name, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    # The stage's shape.

    def check_fingerprint(self, fingerprint: Fingerprint) -> list[Change]:
        """Compares the stage with the one that began the checkpoint and remembers it.

        Returns the changes that do no harm. Raises IncompatibleChange, and remembers nothing, when the
        checkpoint cannot go on with this shape.
        """
        stored = self.read_json(_FINGERPRINT)
        changes: list[Change] = []
        # Without a checkpoint of Spark's there is nothing that a change could be incompatible with.
        if stored is not None and self.query_id() is not None:
            changes = fingerprint.changes_from(Fingerprint(stored["shape"]))
            refused = [change for change in changes if not change.harmless]
            if refused:
                raise IncompatibleChange(self.name, refused)
        if stored is None or stored["shape"] != fingerprint.shape:
            self.write_json(_FINGERPRINT, {"version": 1, "shape": fingerprint.shape})
        return changes

    # Beginning anew.

    def reset(self, to: str | int, replace: Sequence[str] = ()) -> None:
        """Forgets all progress and state; the next run starts at `to`: earliest, latest, or a time in ms.

        `replace` names Parquet lakes, from which everything goes that the stage has written. The caller holds
        the lock, so that no driver is at work on what is removed.
        """
        if isinstance(to, str) and to not in ("earliest", "latest"):
            raise CheckpointError(f"cannot reset to {to!r}: earliest, latest or a time in milliseconds")
        try:
            queries = self.queries()
        except CheckpointError:
            if replace:
                raise
            queries = []  # a reset cures a damaged checkpoint
        if replace:
            _on_lakes(replace, queries, remove=False)
        lakes = [absolute(path) for path in replace]
        self._write(_START, {"start": to, "removing": True, "queries": queries, "replace": lakes})
        self._finish_reset()

    def queries(self) -> list[str]:
        """All queries of this stage whose rows are in its lakes: this one's id, and those before resets."""
        self._finish_reset()
        earlier = (self.read_json(_START) or {}).get("queries", [])
        try:
            current = self.query_id()
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{self}: {_SPARK}/metadata cannot be read, so it is not known which query has run there"
            ) from None
        return [*earlier, current] if current is not None else list(earlier)

    def starting_options(self) -> dict[str, str]:
        """Options for the sources of a stage whose checkpoint is empty; none unless it was reset.

        A checkpoint that has a batch knows better, and Spark asks it first.
        """
        self._finish_reset()
        noted = self.read_json(_START)
        if noted is None:
            return {}
        if isinstance(noted["start"], int):
            # A time after the last record means "what comes from now on", not an error.
            return {
                "startingTimestamp": str(noted["start"]),
                "startingOffsetsByTimestampStrategy": "latest",
            }
        return {"startingOffsets": noted["start"]}

    def _finish_reset(self) -> None:
        data = self._folder.read(_START)
        if data is None:
            return
        noted = json.loads(data)
        if not noted["removing"]:
            return
        replace, queries = noted.get("replace", []), noted.get("queries", [])
        if replace:
            _on_lakes(replace, queries, remove=True)
        for entry in self._folder.list():
            if entry.is_folder:
                self._folder.remove_tree(entry.name)
            elif entry.name not in (_START, _LOCK):
                self._folder.remove(entry.name)
        self._folder.sync()
        left = [] if replace else queries
        self._write(_START, {"start": noted["start"], "removing": False, "queries": left})

    # One driver at a time.

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while the block runs; StageBusy when another driver on this machine has it.

        The operating system releases it when the process ends, however it ends. Over a URL nothing is locked.
        """
        if not self._folder.is_local:
            yield
            return
        self._folder.make()
        path = Path(self._folder.path) / _LOCK
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = path.read_text().strip() or "another process"
                raise StageBusy(
                    f"stage {self.name} is being run by {holder}; its checkpoint is {self._folder.path}."
                    " End that one first, or give this one another --checkpoints folder."
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()}\n")
            file.flush()
            yield


def _on_lakes(paths: Sequence[str], queries: Sequence[str], *, remove: bool) -> None:
    """Take the rows of these queries out of the lakes, or only find out whether that can be done."""
    # Imported when it is needed: it brings Parquet with it, which most commands do without.
    from ottla.pipeline.lakes.layout import LakeError
    from ottla.pipeline.lakes.replacing import plan_replacement, remove_rows

    try:
        for path in paths:
            if remove:
                remove_rows(path, queries)
            else:
                plan_replacement(path, queries)
    except LakeError as problem:
        raise CheckpointError(str(problem)) from None
