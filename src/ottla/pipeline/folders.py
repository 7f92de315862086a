"""A folder at a path or a URL: the few file operations that checkpoints and the lake are made of.

Everything goes through `pyarrow.fs`, so that `/data/x`, `file:///data/x`, `s3://bucket/x` and `hdfs://host/x`
work alike. What differs is how a small file changes whole: on a local or mounted file system by writing it
beside, syncing and renaming over the old one; on an object store by writing it, since an object appears when
it is complete. Elsewhere (HDFS) a rename does not replace: there the old file goes first, and a reader that
finds it gone takes the new one that still stands beside.

Only a local file system is told to put files to stable storage (`fsync`); the others do so by themselves.

Every change of a file is one method here, so that a test can stop the work before and after each of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import pyarrow.fs as pafs

_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
_REQUESTS_AT_ONCE = 16
_UNFINISHED = ".writing"
_BESIDE = ".new"


T = TypeVar("T")


class Entry(NamedTuple):
    """One thing in a folder: `name` is relative to the folder that was listed."""

    name: str
    is_folder: bool
    size: int
    modified: float
    """Seconds since 1970; 0 where the file system does not say."""


class Folder:
    """Files under one root; all names are relative to it, with forward slashes."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = absolute(url)
        """As it was given, a plain path made absolute."""
        files, path = pafs.FileSystem.from_uri(_for_arrow(self.url))
        self._set(files, path)

    def _set(self, files: pafs.FileSystem, path: str) -> None:
        self._files = files
        self.path = path.rstrip("/") or "/"
        self.kind: str = files.type_name
        self.is_local = isinstance(files, pafs.LocalFileSystem)

    @classmethod
    def on(cls, files: pafs.FileSystem, path: str, url: str = "") -> Folder:
        """A folder of a file system that is there already."""
        folder = cls.__new__(cls)
        folder.url = url or path
        folder._set(files, path)
        return folder

    def below(self, name: str) -> Folder:
        """The folder `name` in this one."""
        return type(self).on(self._files, self._at(name), _joined(self.url, name))

    def beside(self, name: str) -> Folder | None:
        """The folder `name` next to this one; None for the root of a file system or a bucket."""
        parent, _, own = self.path.rpartition("/")
        if not own or not parent:
            return None
        where, mark, query = self.url.partition("?")
        above = where.rstrip("/").rpartition("/")[0] + mark + query
        return type(self).on(self._files, f"{parent}/{name}", _joined(above, name))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        return self.url

    def _at(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}" if name else self.path

    # Looking.

    def exists(self, name: str = "") -> bool:
        return bool(self._files.get_file_info(self._at(name)).type != pafs.FileType.NotFound)

    def read(self, name: str) -> bytes | None:
        """All of a small file, None when there is none."""
        for candidate in (name, name + _BESIDE) if self._replaces_in_two_steps else (name,):
            try:
                with self._files.open_input_file(self._at(candidate)) as source:
                    return bytes(source.read())
            except FileNotFoundError:
                continue
        return None

    def list(self, name: str = "", *, recursive: bool = False) -> list[Entry]:
        """What is in a folder, sorted by name; nothing when it is not there."""
        root = self._at(name)
        chosen = pafs.FileSelector(root, allow_not_found=True, recursive=recursive)
        return sorted(
            Entry(
                info.path[len(root.rstrip("/")) + 1 :],
                info.type == pafs.FileType.Directory,
                info.size or 0,
                info.mtime_ns / 1e9 if info.mtime_ns else 0.0,
            )
            for info in self._files.get_file_info(chosen)
        )

    def open(self, name: str) -> Any:
        """A file for reading at any place (a pyarrow NativeFile)."""
        return self._files.open_input_file(self._at(name))

    # Changing.

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """A new file, synced when the block ends well."""
        if self.is_local:
            with open(self._at(name), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        else:
            with self._files.open_output_stream(self._at(name)) as stream:
                yield cast("IO[bytes]", stream)

    def write(self, name: str, data: bytes) -> None:
        """Gives a small file new content; a reader finds the old or the new, whole, whatever happens."""
        if self.kind in _OBJECT_STORES:
            with self.create(name) as file:
                file.write(data)
            return
        with self.create(name + _UNFINISHED) as file:
            file.write(data)
        if self._replaces_in_two_steps:
            # What a crash interrupted is finished first; else neither would stand for a moment.
            if not self.exists(name) and self.exists(name + _BESIDE):
                self.move(name + _BESIDE, name)
            self.remove(name + _BESIDE)
            self.move(name + _UNFINISHED, name + _BESIDE)
            self.remove(name)
            self.move(name + _BESIDE, name)
        else:
            self.move(name + _UNFINISHED, name)
            self.sync(name.rpartition("/")[0])

    def move(self, name: str, to: str, folder: Folder | None = None) -> None:
        """Renames a file, also into another folder of the file system. FileNotFoundError when it is gone."""
        target = (folder or self)._at(to)
        if self.is_local:
            Path(self._at(name)).replace(target)
            return
        try:
            self._files.move(self._at(name), target)
        except OSError:
            if not self.exists(name):  # an object store says only that something was wrong
                raise FileNotFoundError(self._at(name)) from None
            raise

    def make(self, name: str = "") -> None:
        """Makes a folder and those above it; nothing happens when it is there."""
        if self.kind in _OBJECT_STORES:
            return  # there are only names with slashes in them; an empty object would lie about as a marker
        self._files.create_dir(self._at(name), recursive=True)

    def remove(self, name: str) -> None:
        """Removes a file; nothing happens when it is not there."""
        try:
            self._files.delete_file(self._at(name))
        except FileNotFoundError:
            return

    def remove_tree(self, name: str = "") -> None:
        """Removes a folder with all that is in it; nothing happens when it is not there."""
        if self.is_local:
            shutil.rmtree(self._at(name), ignore_errors=not Path(self._at(name)).exists())
            return
        try:
            self._files.delete_dir(self._at(name))
        except FileNotFoundError:
            return

    def sync(self, name: str = "") -> None:
        """Returns when the names made, renamed and removed in a folder would survive a loss of power."""
        if not self.is_local:
            return
        descriptor = os.open(self._at(name), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def for_each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        """Does the work for every item: one after the other, or many at once where each is a slow request."""
        if self.kind not in _OBJECT_STORES:
            for item in items:
                work(item)
            return
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            for _ in pool.map(work, items):
                pass

    @property
    def _replaces_in_two_steps(self) -> bool:
        return not self.is_local and self.kind not in _OBJECT_STORES


def _joined(url: str, name: str) -> str:
    """The URL of something below `url`, which may end in ?settings of the file system."""
    where, mark, query = url.partition("?")
    return f"{where.rstrip('/')}/{name}{mark}{query}"


def absolute(url: str | os.PathLike[str]) -> str:
    """The URL itself, or a plain path made absolute."""
    text = os.fspath(url)
    return text if "://" in text else str(Path(text).expanduser().absolute())


def for_spark(url: str) -> str:
    """What Spark's file systems call the same place: Hadoop knows S3 as s3a, and is set up elsewhere."""
    return "s3a://" + url.removeprefix("s3://").partition("?")[0] if url.startswith("s3://") else url


def _for_arrow(url: str) -> str:
    return "s3://" + url.removeprefix("s3a://") if url.startswith("s3a://") else url
