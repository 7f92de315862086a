"""The class-data archive: Spark's classes, parsed and linked once, mapped into memory at each later start.

Half of the time to a first query goes into loading 24,000 classes from 300 jars. Java can keep the result
in a file (about 180 MB) that fits one Java, one Spark and one place on disk. It is made by `ottla pipeline
warm`, or by a process of low priority that is left behind when the first program that used Spark has ended.
Without it everything works, only slower; `OTTLA_SPARK_ARCHIVE=off` does without for good, `=use` never
makes one.

A file gets its name, with its size and checksum in it, only when it is whole. So a maker may be killed at
any moment, two may work at once, and a file that was damaged later is seen and removed, never mapped: Java
itself looks at little more than the header, and a JVM with a bad archive may crash at any time. An archive
of another Java or Spark has another name; Java also refuses one whose jars have changed.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import crc32c

from ottla.pipeline.spark.java import Java, find_java

#: How many archives the cache keeps, those last used: one for each environment a developer moves between.
KEPT = 3
#: A training run or a dump that takes longer than this hangs; both take half a minute on an idle machine.
PATIENCE = 900.0

_CHUNK = 1 << 22
_waiting_for_exit: list[Java] = []


class ArchiveFailed(RuntimeError):
    """No archive could be made; the message has what Java said. Pipelines run without, only start slower."""


@dataclass(frozen=True)
class Archive:
    """What `warm` has to show: the file, and whether this call made it and how long that took."""

    path: Path
    made: bool
    seconds: float


def cache_folder(*parts: str) -> Path:
    """The folder of this name in the user's cache; it need not exist yet.

    What is in it (class-data archives, jars that Maven resolved) can be made again and may be removed at any
    time. `OTTLA_CACHE` names another folder.
    """
    named = os.environ.get("OTTLA_CACHE")
    if named:
        return Path(named, *parts)
    if sys.platform == "darwin":
        return Path.home().joinpath("Library", "Caches", "ottla", *parts)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache").joinpath("ottla", *parts)


def find(java: Java) -> Path | None:
    """The archive for this Java and the installed Spark, if there is a sound one."""
    if _policy() == "off":
        return None
    for path in sorted(_folder().glob(f"{_key(java)}-*.jsa")):
        if _is_sound(path):
            return path
        discard(path)
    return None


def java_options(archive: Path) -> list[str]:
    """The options of a JVM that uses the archive, and goes on without a word where it does not fit."""
    quiet = "-Xlog:disable -Xlog:all=error,cds*=off:stderr"
    return ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}", quiet]


def discard(archive: Path) -> None:
    """Remove an archive; a JVM that has it mapped keeps what it mapped."""
    archive.unlink(missing_ok=True)


def warm(progress: Callable[[str], None] | None = None, java: Java | None = None) -> Archive:
    """Make the archive unless it is there; waits for another process that is making it.

    `progress` is told each step in a line. Raises `JavaMissing` or `ArchiveFailed`.
    """
    say = progress or (lambda _: None)
    java = java or find_java()
    if _policy() == "off":
        raise ArchiveFailed("OTTLA_SPARK_ARCHIVE is off: Spark would not use an archive")
    begun = time.monotonic()
    with _alone(wait=lambda: say("another process is making the archive; waiting for it")):
        present = find(java)
        if present is not None:
            return Archive(present, False, time.monotonic() - begun)
        _failure(java).unlink(missing_ok=True)
        return Archive(_make(java, say), True, time.monotonic() - begun)


def make_at_exit(java: Java) -> None:
    """Leave a process behind that makes the archive, once this one has ended and does not need the cores."""
    # What failed once fails again, and must not cost every later program a minute of the machine.
    if _policy() == "auto" and not _waiting_for_exit and not _failure(java).exists():
        _waiting_for_exit.append(java)
        atexit.register(_leave_maker, java, os.getpid())


def _leave_maker(java: Java, owner: int) -> None:
    if os.getpid() != owner:  # a forked child ends too
        return
    subprocess.Popen(
        [sys.executable, "-m", "ottla.pipeline.spark.archive"],
        env={**os.environ, **java.environment()},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _make(java: Java, say: Callable[[str], None]) -> Path:
    """Two runs of Java: one does typical work and lists the classes it loads, one writes them down."""
    folder = _folder()
    for leftover in folder.glob("making-*"):  # of a maker that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder, ignore_cleanup_errors=True) as work:
        classes, options, dumped = (Path(work, name) for name in ("classes", "options", "archive"))
        say(f"running Spark once to see which classes it loads ({java})")
        _run(
            "the training run",
            [sys.executable, "-m", "ottla.pipeline.spark.training", str(classes), str(options)],
            {**java.environment(), "OTTLA_SPARK_ARCHIVE": "off"},
        )
        count = len(classes.read_bytes().splitlines())
        say(f"writing {count:,} classes to the archive")
        _run(
            "writing the archive",
            [
                str(java.home / "bin" / "java"),
                "-Xmx1g",
                "-Xshare:dump",
                f"-XX:SharedClassListFile={classes}",
                f"-XX:SharedArchiveFile={dumped}",
                *options.read_text().splitlines(),
            ],
            {},
        )
        if not dumped.exists():
            raise ArchiveFailed("Java ended well but wrote no archive")
        dumped.chmod(0o600)
        with open(dumped, "rb+") as file:
            os.fsync(file.fileno())
        name = f"{_key(java)}-{dumped.stat().st_size}-{_checksum(dumped):08x}.jsa"
        whole = dumped.rename(folder / name)
    _keep_the_last_used(folder)
    return whole


def _run(what: str, command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise ArchiveFailed(f"{what} took longer than {PATIENCE:.0f} s") from None
    if done.returncode != 0:
        raise ArchiveFailed(f"{what} failed (exit code {done.returncode}):\n{done.stdout[-2000:]}")


def _is_sound(archive: Path) -> bool:
    """Whether the file is the one that was written, by size and checksum in its name; marks it as used."""
    try:
        size, checksum = archive.stem.rsplit("-", 2)[1:]
        if archive.stat().st_size != int(size) or _checksum(archive) != int(checksum, 16):
            return False
        os.utime(archive)
    except (OSError, ValueError):
        return False
    return True


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = crc32c.crc32c(chunk, checksum)
    return checksum


def _keep_the_last_used(folder: Path) -> None:
    by_use = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_use[KEPT:]:
        discard(old)


def _key(java: Java) -> str:
    """Names what an archive depends on: this Java, these jars, in this place."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    core = next(iter(sorted(jars.glob("spark-core_*.jar"))), jars)
    modules = java.home / "lib" / "modules"
    facts = [str(java.home), java.version, str(jars)]
    facts += [str(path.stat().st_mtime_ns) for path in (jars, core, modules) if path.exists()]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return f"spark-{pyspark.__version__}-java-{java.version}-{digest}"


def _failure(java: Java) -> Path:
    """The note that the background leaves where it could not make an archive; `warm` tries again."""
    return _folder() / f"{_key(java)}.failed"


def _folder() -> Path:
    return cache_folder("spark-archive")


def _policy() -> str:
    policy = os.environ.get("OTTLA_SPARK_ARCHIVE", "auto")
    return policy if policy in ("auto", "use") else "off"


@contextmanager
def _alone(wait: Callable[[], None] | None) -> Iterator[None]:
    """Hold the lock of all makers. With no `wait`, an `ArchiveFailed` when another one has it."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                raise ArchiveFailed("another process is making the archive") from None
            wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """The maker in the background: gives way to everything else, and to another maker."""
    os.nice(19)
    java = find_java()
    with _alone(wait=None):
        if find(java) is None:
            try:
                _make(java, lambda _: None)
            except ArchiveFailed as failed:
                _failure(java).write_text(f"{failed}\n")


if __name__ == "__main__":
    main()
