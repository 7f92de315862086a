"""The one line that says why a stage failed, out of the hundreds that Spark gives.

A failure passes through several layers before it reaches us: the user's function in a Python worker, the task
in the JVM, the job, the callback of the batch, the streaming query. Each wraps the text of the one below it.
What a person wants is the innermost exception and the line of their own file where it was raised:

    ValueError: price is negative (shop.py:31, in to_euro)

The whole text is kept in `errors.log` in the stage's folder (`append_error`), newest last.
"""

from __future__ import annotations

import logging
import os
import re
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from ottla.pipeline.folders import Folder

log = logging.getLogger("ottla.pipeline")

LONGEST = 400
ERRORS = "errors.log"
_MOST_KEPT = 256 << 10
"""Bytes that are kept: the folder of a stage that fails for weeks does not grow."""

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_CALLED_FROM = re.compile(r"was called from\s*\n(?P<path>[^\n]+?):(?P<line>\d+)")
_QUERY_FAILED = re.compile(
    r"^\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: (?P<rest>.*)", re.DOTALL
)
_SQLSTATE = re.compile(r";?\s*SQLSTATE: [0-9A-Z]{5};?")
_LOST_TASK = re.compile(r"most recent failure: Lost task [^)]*\)(?: \([^)]*\))?: (?P<rest>[^\n]*)")
_CAUSED_BY = re.compile(r"^Caused by: (?P<rest>[^\n]+)", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^(?:[a-z_][\w$]*\.)+(?P<name>[A-Z][\w$]*)(?=[:\s]|$)")
_PYTHON_CLASS = re.compile(r"^(?:\w+\.)+(?P<name>[A-Z]\w*)(?=:|$)")
_GENERIC = ("PythonException", "SparkException", "Py4JJavaError", "Py4JException")
"""Classes that say only where an exception passed through."""
_ENDS = ("\tat ", "== DataFrame ==", "== SQL", "JVM stacktrace:", "Driver stacktrace:", "\n")

_LASTING = re.compile(
    r"^ottla\.pipeline\.[\w.]+\."
    r"(StageError|OptionError|WriteRefused|DataLost|LakeError|CheckpointError|TakenOver)(:|$)",
    re.MULTILINE,
)

_PROCESS_DIED = re.compile(
    r"Python worker (exited|failed)|EOFException|Could not connect|failed to connect back|PYTHON_WORKER", re.I
)

_OURS = str(Path(__file__).parents[2]) + os.sep


class Cause(NamedTuple):
    """Why it failed, and where in the user's own code, when that is known."""

    what: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


def cause_of(error: BaseException) -> Cause:
    """The cause of an exception that was caught here in the driver."""
    return root_cause("".join(traceback.format_exception(error)))


def root_cause(text: str) -> Cause:
    """The cause that is told in `text`: the message or the trace of a failed query."""
    text = text.partition("\n=== Streaming Query ===")[0]
    at = text.rfind(_TRACEBACK)
    if at >= 0:
        found = _in_traceback(text[at + len(_TRACEBACK) :])
        if found is not None:
            # A failure that Spark itself found has the user's line in its own text, or in an outer trace.
            return found if found.where else Cause(found.what, _called_from(text) or _last_place(text))
    return Cause(_shorten(_java_message(text)), _called_from(text))


def lasts(text: str) -> bool:
    """Whether another attempt would fail in the same way until a person changes something.

    These are our own exceptions for a decided matter. Everything else may pass: a broker or a service that is
    away, a full disk, a worker that was killed, and errors of the user's functions, which we cannot judge.
    """
    return _LASTING.search(text) is not None


def with_error_output(text: str, lines: str) -> str:
    """The text of a failure, with what processes wrote last if one of them ended without telling why."""
    if not lines or not _PROCESS_DIED.search(text):
        return text
    return f"{text.rstrip()}\n\nWhat Spark's processes last wrote to their error output:\n{lines}\n"


def _in_traceback(text: str) -> Cause | None:
    lines = text.lstrip("\n").splitlines()
    frames: list[str] = []
    for index, line in enumerate(lines):
        if not line.startswith(" "):
            what = _exception_text(lines[index:])
            return Cause(_shorten(what), _last_place("\n".join(frames))) if what else None
        frames.append(line)
    return None


def _exception_text(lines: list[str]) -> str:
    """`Class: message` from its first line on; messages may have several lines."""
    taken: list[str] = []
    for line in lines:
        if not line.strip() or line.startswith(_ENDS):
            break
        # Spark puts the plan below the message of an analysis; it starts with a quote or a branch.
        if taken and re.match(r"^(['~]\w+|\+-|:-|   )", line):
            break
        taken.append(line.strip())
    text = " ".join(taken)
    named = _PYTHON_CLASS.match(text)
    if named is None:
        return text
    if text.startswith("ottla."):  # our own failures are written as sentences; their class says no more
        return text[named.end() :].removeprefix(":").strip() or text
    return text[named.start("name") :]


def _java_message(text: str) -> str:
    """What failed in the JVM, when no Python took part in it."""
    lost = _LOST_TASK.search(text)
    causes = _CAUSED_BY.findall(text)
    if causes:
        text = causes[-1]
    elif lost is not None:
        text = lost["rest"]
    else:
        failed = _QUERY_FAILED.match(text.strip())
        text = _exception_text((failed["rest"] if failed else text.strip()).splitlines())
    named = _JAVA_CLASS.match(text)
    return text[named.start("name") :] if named else text


def _last_place(text: str) -> str:
    """The deepest frame that lies in the user's own files."""
    places = [frame for line in text.splitlines() if (frame := _FRAME.match(line)) and _users(frame["path"])]
    if not places:
        return ""
    last = places[-1]
    return f"{_short_path(last['path'])}:{last['line']}, in {last['function'].strip()}"


def _called_from(text: str) -> str:
    places = [place for place in _CALLED_FROM.finditer(text) if _users(place["path"].strip())]
    if not places:
        return ""
    return f"{_short_path(places[-1]['path'].strip())}:{places[-1]['line']}"


def _users(path: str) -> bool:
    if path.startswith("<"):
        return False
    if path.startswith(_OURS):
        return f"{os.sep}examples{os.sep}" in path
    parts = path.replace("\\", "/").split("/")
    library = {"site-packages", "dist-packages", "pyspark.zip", "pyspark", "py4j"}
    if library.intersection(parts) or any(part.startswith("py4j-") for part in parts):
        return False
    return path != os.__file__ and not path.startswith(os.path.dirname(os.__file__) + os.sep)  # noqa: PTH120


def _short_path(path: str) -> str:
    """Relative to where the command was started, when it lies below; else the bare name."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return Path(path).name


def _shorten(text: str) -> str:
    """One line without Spark's codes, of a bearable length."""
    flat = " ".join(_SQLSTATE.sub("", text).split())
    for name in _GENERIC:
        flat = flat.removeprefix(f"{name}: ")
    if len(flat) > LONGEST:
        flat = flat[: LONGEST - 1].rstrip() + "…"
    return flat or "failed without saying why"


def append_error(folder: str, text: str) -> None:
    """Add a trace under the current time. The folder is a path or a URL.

    Where it cannot be written the stage goes on all the same: the disk may be what it failed with.
    """
    entry = f"--- {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{text.rstrip()}\n".encode()
    try:
        place = Folder(folder)
        place.make()
        before = place.read(ERRORS) or b""
        kept = (before + entry)[-_MOST_KEPT:]
        if len(before) + len(entry) > _MOST_KEPT:
            kept = kept[kept.find(b"\n--- ") + 1 :]
        place.write(ERRORS, kept)
    except OSError as problem:
        log.warning("%s in %s cannot be written: %s", ERRORS, folder, problem)
