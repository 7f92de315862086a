"""What `ottla pipeline compact` shows while the files of a lake are put together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.failure import Failure
from ottla.cli.output import count_text, print_json, say, size_text, write

if TYPE_CHECKING:
    from ottla.pipeline.lakes.compact import CompactionSummary, Merged


def compact_path(path: str, target_bytes: int, *, dry_run: bool, as_json: bool) -> None:
    from ottla.pipeline.lakes.compact import compact_lake
    from ottla.pipeline.lakes.layout import LakeError

    try:
        done = compact_lake(path, target_bytes, dry_run=dry_run, progress=None if as_json else _show)
    except LakeError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot compact {path}: {error}") from None
    if as_json:
        print_json(_document(path, done, dry_run))
        return
    if not done.merges:
        write(f"nothing to do in {path}: {count_text(done.files_before, 'file')}{_protected(done)}\n")
    elif dry_run:
        files = sum(len(merge.names) for merge in done.merges)
        size = size_text(sum(merge.bytes for merge in done.merges))
        write(f"{count_text(files, 'file')} ({size}) would become {len(done.merges)}{_protected(done)}\n")
        say("This was a dry run: nothing is changed.")
    else:
        before, after = size_text(done.bytes_before), size_text(done.bytes_after)
        write(
            f"{count_text(done.files_before, 'file')} became {done.files_after:,}: "
            f"{before} merged into {after}, {count_text(done.rows, 'row')}{_protected(done)}\n"
        )


def _show(merged: Merged) -> None:
    """One line per folder in a pipe, one that is rewritten at a terminal."""
    where = merged.folder or "the lake itself"
    line = f"{merged.done} of {merged.total}: {where}, {count_text(merged.files, 'file')} into one"
    if sys.stderr.isatty():
        sys.stderr.write(
            f"\r\x1b[2K\x1b[2m{line}\x1b[0m" + ("\r\x1b[2K" if merged.done == merged.total else "")
        )
        sys.stderr.flush()
    else:
        say(line)


def _protected(done: CompactionSummary) -> str:
    """Files of the last batches, which their stages may still replace."""
    return f"; {count_text(done.protected, 'new file')} left for the next time" if done.protected else ""


def _document(path: str, done: CompactionSummary, dry_run: bool) -> dict[str, object]:
    return {
        "path": path,
        "dry_run": dry_run,
        "merges": len(done.merges),
        "files_before": done.files_before,
        "files_after": None if dry_run else done.files_after,
        "bytes_before": done.bytes_before,
        "bytes_after": None if dry_run else done.bytes_after,
        "rows": done.rows,
        "protected": done.protected,
        "finished": done.finished,
    }
