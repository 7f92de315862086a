"""`errors.log` in a stage's folder: the whole traces of its last failures, newest last."""

from __future__ import annotations

import logging
import time

from ottla.pipeline.folders import Folder

log = logging.getLogger("ottla.pipeline")

NAME = "errors.log"
MOST = 256 << 10
"""Bytes that are kept: the folder of a stage that fails for weeks does not grow."""


def append_error(folder: str, text: str) -> None:
    """Add a trace under the current time. The folder is a path or a URL.

    Where it cannot be written the stage goes on all the same: the disk may be what it failed with.
    """
    entry = f"--- {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{text.rstrip()}\n".encode()
    try:
        place = Folder(folder)
        place.make()
        before = place.read(NAME) or b""
        kept = (before + entry)[-MOST:]
        if len(before) + len(entry) > MOST:
            kept = kept[kept.find(b"\n--- ") + 1 :]
        place.write(NAME, kept)
    except OSError as problem:
        log.warning("%s in %s cannot be written: %s", NAME, folder, problem)
