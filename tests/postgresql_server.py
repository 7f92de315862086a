"""PostgreSQL for slow tests: Debian's package, started as a plain process in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_START_SECONDS = "120"


@cache
def programs() -> Path | None:
    """The folder of initdb and postgres, or None if they are not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = str(folders[-1]) if folders else shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgresql() -> Iterator[str]:
    """A server with an empty database; gives what `psycopg.connect` takes.

    It listens on a socket in its folder and nowhere else. PostgreSQL refuses to run as root: then it runs as
    the user that the package made for it.
    """
    bin_folder = programs()
    assert bin_folder is not None, "run: apt-get install postgresql"
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="ottla-postgresql-", dir="/tmp"))  # a socket's path must be short
    try:
        if user:
            shutil.chown(folder, user)
        data = folder / "data"

        def run(program: str, *arguments: str) -> None:
            subprocess.run(
                [bin_folder / program, *arguments],
                check=True,
                user=user,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

        run("initdb", "-D", str(data), "-U", "tester", "-A", "trust", "--no-sync", "--no-instructions")
        # Programs of tests are killed, the machine is not.
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        run(
            "pg_ctl",
            "start",
            "-w",
            "-t",
            _START_SECONDS,
            "-D",
            str(data),
            "-l",
            str(folder / "log"),
            "-o",
            options,
        )
        try:
            yield f"host={folder} user=tester dbname=postgres"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(data))
    finally:
        shutil.rmtree(folder)
