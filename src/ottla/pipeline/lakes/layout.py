"""Where the lake keeps what is not data, and how its files are called.

    lake/day=2026-01-01/part-<query id>-<batch>-<output>-<unique>.parquet     data, and nothing but data
    .lake.ottla/staging/<writer>/<attempt>/*.staged     files of a batch that is not decided yet
    .lake.ottla/journals/<writer>.json                  what the writer's last batch published and replaced
    .lake.ottla/swaps/<id>.json, <id>.staged            a compaction on its way (`compact.py`)

The notes stand beside the lake, not in it: DuckDB and Polars read hidden folders too, and Polars refuses a
folder with other files in it. Only where nothing can stand beside (the root of a bucket or a mount, a
parent that is not writable) they go inside, as `_ottla`, which Spark and pyarrow pass over. Staged files do
not end in `.parquet`, so that no glob finds them. Both places are on one file system, so that a rename
publishes a file whole.

A writer is one output of one query: its id is Spark's query id, and the number of the output in its stage.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ottla.pipeline.folders import Folder

INSIDE = "_ottla"
JOURNALS = "journals"
STAGING = "staging"
SWAPS = "swaps"
STAGED = ".staged"
SUFFIX = ".parquet"
_DATA_FILE = re.compile(
    r"part-(?P<query>.+)-(?P<batch>\d{9,})-(?P<output>\d+)-(?P<unique>[0-9a-f]+)\.parquet"
)
_COMPACTED_FILE = re.compile(r"compacted-[0-9]+-[0-9a-f]+\.parquet")
_WRITER_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class LakeError(Exception):
    """The lake cannot be written; the message says why and what to do."""


@dataclass(frozen=True)
class Writer:
    """One output of one streaming query."""

    query_id: str
    output: int = 0

    def __post_init__(self) -> None:
        if not _WRITER_NAME.fullmatch(self.query_id):
            raise LakeError(f"{self.query_id!r} is no query id: it becomes part of file names")

    @property
    def name(self) -> str:
        return f"{self.query_id}-{self.output}"

    def file_prefix(self, batch_id: int) -> str:
        """What the names of all files of a batch begin with."""
        return f"part-{self.query_id}-{batch_id:09d}-{self.output}-"


@dataclass(frozen=True)
class StagedFile:
    """A finished file that no reader sees yet."""

    staged: str
    """Its name in the staging folder of its attempt."""
    folder: str
    """The partition folder it belongs into, relative to the lake; empty without partitions."""
    name: str
    """The name it will have there."""
    rows: int
    bytes: int

    @property
    def final(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


@dataclass(frozen=True)
class Journal:
    """What the last batch of a writer decided: these files are its rows, those are to go."""

    batch_id: int
    attempt: str
    files: tuple[StagedFile, ...]
    removes: tuple[str, ...]

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, data: bytes) -> Journal:
        read = json.loads(data)
        files = tuple(StagedFile(**file) for file in read["files"])
        return cls(read["batch_id"], read["attempt"], files, tuple(read["removes"]))


class LakePlace:
    """A lake and the folder of notes that belongs to it."""

    def __init__(self, lake: Folder | str | os.PathLike[str]) -> None:
        self.lake = lake if isinstance(lake, Folder) else Folder(lake)
        self.notes = _notes_folder(self.lake)

    def staging(self, writer: Writer, attempt: str = "") -> Folder:
        return self.notes.below(f"{STAGING}/{writer.name}/{attempt}".rstrip("/"))

    def read_journal(self, writer: Writer) -> Journal | None:
        data = self.notes.read(f"{JOURNALS}/{writer.name}.json")
        return None if data is None else Journal.of(data)

    def write_journal(self, writer: Writer, journal: Journal) -> None:
        self.notes.make(JOURNALS)
        self.notes.write(f"{JOURNALS}/{writer.name}.json", journal.to_bytes())

    def last_batches(self) -> dict[str, int]:
        """By writer: the batch that may still be replaced, and that only its writer may touch."""
        found = {}
        for entry in self.notes.list(JOURNALS):
            if entry.name.endswith(".json"):
                data = self.notes.read(f"{JOURNALS}/{entry.name}")
                if data is not None:
                    found[entry.name.removesuffix(".json")] = Journal.of(data).batch_id
        return found


def writer_and_batch(name: str) -> tuple[str, int] | None:
    """Writer and batch of a data file by its name; None for a file that is not a stage's."""
    match = _DATA_FILE.fullmatch(name)
    return None if match is None else (f"{match['query']}-{match['output']}", int(match["batch"]))


def is_ours(name: str) -> bool:
    """Whether a stage or a compaction wrote the file."""
    return _DATA_FILE.fullmatch(name) is not None or _COMPACTED_FILE.fullmatch(name) is not None


def folders_of(names: Iterable[str]) -> list[str]:
    """The folders these files are in, each once."""
    return sorted({name.rpartition("/")[0] for name in names})


def _notes_folder(lake: Folder) -> Folder:
    inside = lake.below(INSIDE)
    beside = lake.beside(f".{lake.name}.ottla")
    if beside is None or inside.exists():
        return inside
    if not lake.is_local or beside.exists():
        return beside
    lake.make()
    parent = Path(beside.path).parent
    same_device = Path(lake.path).stat().st_dev == parent.stat().st_dev
    return beside if same_device and os.access(parent, os.W_OK) else inside
