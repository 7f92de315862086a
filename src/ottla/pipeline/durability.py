"""Spark's checkpoint across a crash of the machine, not only of the process.

Spark does not sync the files of its checkpoint. After a loss of power the newest of them may be gone or
empty, while a lake, whose files are synced, has the rows of a batch whose plan is lost. Spark would then plan
a batch of the same number over other records, and the rows would be there twice. And an empty file at the end
of one of its logs keeps it from starting at all. So two things are done here:

- `SparkFiles.sync` is called when a batch has been planned and before any of it is written. It puts the plan,
  and the state the batch begins with, on stable storage. So what an output has, Spark can plan again.
- `mend` is called before a query starts. It removes what a crash has left unreadable at the end of Spark's
  logs: batches whose plan is lost were not written to a lake yet, and batches whose end is lost run again.
  The same holds for state that the last batch wrote: if some of it is gone or empty, all of it is removed and
  the batch runs again. Spark would not replace an empty file of state, and would fail on it for good.

Both are for checkpoints on a local or mounted file system; object stores keep what they have acknowledged.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("ottla.pipeline")

_SYNCED = ("offsets", "sources", "state")
"""What a batch needs to be run again. Commits are not: without one, the batch is run again."""


_VERSION = re.compile(r"(?P<version>\d+)(_[0-9a-fA-F-]+)?\.(delta|snapshot|zip|changelog)")
"""Files of state by the version they make: batch 7 begins with version 7 and writes version 8."""
_Entries = set[tuple[str, int]]


class SparkFiles:
    """The files of one checkpoint that are known to be on stable storage."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self._known: dict[str, _Entries] = {}

    def sync(self) -> None:
        """Sync what is new since the last call."""
        known: dict[str, _Entries] = {}
        self._sync_folder(self._root, known, deep=False)
        for name in _SYNCED:
            self._sync_folder(self._root / name, known, deep=True)
        self._known = known  # folders that are gone are forgotten

    def _sync_folder(self, folder: Path, known: dict[str, _Entries], *, deep: bool) -> None:
        try:
            # Not the checksums that Hadoop writes beside each file: it goes without one that cannot be read.
            entries = [entry for entry in os.scandir(folder) if not entry.name.endswith(".crc")]
        except FileNotFoundError:
            return
        # With the inode: a batch that runs again writes the same names anew.
        found = {(entry.name, entry.inode()) for entry in entries}
        before = self._known.get(str(folder), set())
        for entry in entries:
            if deep and entry.is_dir(follow_symlinks=False):
                self._sync_folder(Path(entry.path), known, deep=True)
            elif (entry.name, entry.inode()) not in before:
                _sync(entry.path)
        if found - before:
            _sync(str(folder))
        known[str(folder)] = found


def _sync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # Spark removes old files while we look
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mend(root: str | os.PathLike[str]) -> list[str]:
    """Remove what a crash of the machine has left unreadable; returns names relative to the checkpoint."""
    folder = Path(root)
    removed = [*_mend_metadata(folder), *_mend_log(folder / "offsets", _is_plan)]
    planned = max(_batches(folder / "offsets"), default=-1)
    removed += _mend_log(folder / "commits", _is_commit)
    for batch in sorted(_batches(folder / "commits")):
        if batch > planned:  # Spark would not expect the end of a batch that it has no plan of
            removed += _remove(folder / "commits" / str(batch))
    removed += _mend_state(folder, planned)
    if removed:
        log.warning(
            "%s was not shut down cleanly: %s could not be read and is removed; its batches are run again",
            folder,
            ", ".join(removed),
        )
    return removed


def _mend_state(folder: Path, planned: int) -> list[str]:
    """Make the last batch run again when what it wrote of the state is not whole."""
    versions: dict[Path, set[int]] = {}
    newer: list[Path] = []
    damaged = False
    for path in (folder / "state").rglob("*"):
        if not path.is_file():
            continue
        named = _VERSION.fullmatch(path.name)
        if path.stat().st_size == 0:
            if named is None and path.name.endswith(".crc"):
                path.unlink()  # a checksum that is gone does no harm, one that is wrong does
                continue
            damaged = True
        if named is not None:
            versions.setdefault(path.parent, set()).add(int(named["version"]))
            if int(named["version"]) > planned:
                newer.append(path)
    if (folder / "commits" / str(planned)).exists():
        damaged = damaged or any(planned + 1 not in found for found in versions.values())
    if not damaged:
        return []
    removed = [name for path in sorted(newer) for name in _remove(path)]
    commit = folder / "commits" / str(planned)
    return removed + (_remove(commit) if commit.exists() else [])


def _mend_metadata(folder: Path) -> list[str]:
    path = folder / "metadata"
    return _remove(path) if path.exists() and not _is_json(path.read_bytes()) else []


def _mend_log(folder: Path, is_good: Callable[[bytes], bool]) -> list[str]:
    """Remove files from the newest down to the first that can be read, and its checksum if it is empty."""
    removed: list[str] = []
    for batch in sorted(_batches(folder), reverse=True):
        path = folder / str(batch)
        if is_good(path.read_bytes()):
            checksum = folder / f".{batch}.crc"
            if checksum.exists() and checksum.stat().st_size == 0:
                checksum.unlink()
            break
        removed += _remove(path)
    return removed


def _remove(path: Path) -> list[str]:
    path.unlink()
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return [f"{path.parent.name}/{path.name}"]


def _batches(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()]
    except FileNotFoundError:
        return []


def _is_plan(data: bytes) -> bool:
    """A version, settings, and a line for each source."""
    version, _, rest = data.partition(b"\n")
    settings, _, sources = rest.partition(b"\n")
    lines = [line.partition(b":")[2] if version == b"v2" else line for line in sources.splitlines()]
    return version in (b"v1", b"v2") and _is_json(settings) and bool(lines) and all(map(_is_offset, lines))


def _is_offset(line: bytes) -> bool:
    return line == b"-" or _is_json(line)


def _is_commit(data: bytes) -> bool:
    version, _, rest = data.partition(b"\n")
    return version.startswith(b"v") and _is_json(rest)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
