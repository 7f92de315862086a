"""A folder that stops the work at any change of a file, as a crash would, and one that renames as HDFS.

Every change is a step. A file being written and a folder being removed can also stop half way, so they are
two steps. `every_step` finds out how many steps some work has by doing it once, and then does it again and
again, each time to be stopped one step later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow.fs as pafs

from ottla.pipeline.folders import Folder


class Stopped(BaseException):
    """The process is gone. No `except Exception` of the code under test may see it."""


class Steps:
    """Counts the changes of files, and stops at one of them."""

    def __init__(self, stop_at: int | None = None, watch: Callable[[], None] | None = None) -> None:
        self.stop_at = stop_at
        self.watch = watch
        self.taken = 0

    def step(self) -> None:
        if self.watch is not None:
            self.watch()
        if self.stop_at is not None and self.taken >= self.stop_at:
            raise Stopped
        self.taken += 1


def folder(path: Path, steps: Steps) -> Folder:
    """The folder at `path`, and all that is derived from it, counted by `steps`."""

    class Watched(Folder):
        @contextmanager
        def create(self, name: str) -> Iterator[IO[bytes]]:
            steps.step()
            with super().create(name) as file:
                yield file
                size = file.tell()
            try:
                steps.step()
            except Stopped:
                os.truncate(self._at(name), size // 2)
                raise

        def move(self, name: str, to: str, folder: Folder | None = None) -> None:
            steps.step()
            super().move(name, to, folder)

        def make(self, name: str = "") -> None:
            steps.step()
            super().make(name)

        def remove(self, name: str) -> None:
            steps.step()
            super().remove(name)

        def remove_tree(self, name: str = "") -> None:
            steps.step()
            for entry in self.list(name):
                inner = f"{name}/{entry.name}" if name else entry.name
                if entry.is_folder:
                    self.remove_tree(inner)
                else:
                    self.remove(inner)
            super().remove_tree(name)

        def sync(self, name: str = "") -> None:
            steps.step()
            super().sync(name)

    return Watched(path)


def every_step(work: Callable[[Steps], object]) -> Iterator[int]:
    """Does the work stopped at step 0, 1, 2 and so on; yields after each, and at last after a whole one.

    What the work left behind is to be checked and put right by the caller.
    """
    at = 0
    while True:
        try:
            work(Steps(at))
        except Stopped:
            yield at
            at += 1
        else:
            assert at > 3, "the work has hardly any steps: is the folder counted?"
            yield at
            return


class _RenamesAsHdfs(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A local file system whose rename refuses to replace a file."""

    def __init__(self) -> None:
        self._local = pafs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RenamesAsHdfs)

    def get_type_name(self) -> str:
        return "hdfs-like"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        if Path(dest).exists():
            raise FileExistsError(dest)
        self._local.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._local.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._local.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._local.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


def hdfs_like(path: Path, kind: type[Folder] = Folder) -> Folder:
    return kind.on(pafs.PyFileSystem(_RenamesAsHdfs()), str(path), f"hdfs-like://host{path}")
