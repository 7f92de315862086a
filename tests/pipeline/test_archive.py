"""The class-data archive: whole or not there, whichever process is killed, however many make it at once.

Making a real one takes a minute, so most tests let the two runs of Java be played by a function; the slow one
at the end makes it with the real Java, uses it and damages it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ottla.pipeline.spark import archive
from ottla.pipeline.spark.archive import ArchiveFailed
from ottla.pipeline.spark.java import Java, find_java
from pipeline.spark_programs import program, until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTTLA_CACHE", str(tmp_path))
    monkeypatch.delenv("OTTLA_SPARK_ARCHIVE", raising=False)
    return tmp_path / "spark-archive"


class PlayedJava:
    """Stands for the training run and the dump: writes what they would write, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dumps = 0
        self.fails = False
        monkeypatch.setattr(archive, "_run", self.run)

    def run(self, what: str, command: list[str], environment: dict[str, str]) -> None:
        if self.fails:
            raise ArchiveFailed(f"{what} failed")
        if "ottla.pipeline.spark.training" in command:
            classes, options = command[-2:]
            Path(classes).write_text("java/lang/Object\n")
            Path(options).write_text("-cp\n/jars/spark.jar")
        else:
            (target,) = (word.partition("=")[2] for word in command if "SharedArchiveFile" in word)
            Path(target).write_bytes(b"classes" * 1000)
            self.dumps += 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedJava:
    return PlayedJava(monkeypatch)


@pytest.fixture
def java() -> Java:
    return find_java()


def test_an_archive_is_made_once_and_found_afterwards(folder: Path, played: PlayedJava, java: Java) -> None:
    assert archive.find(java) is None
    steps: list[str] = []
    first = archive.warm(steps.append, java)
    assert first.made
    assert len(steps) == 2
    assert archive.find(java) == first.path
    again = archive.warm(steps.append, java)
    assert (again.path, again.made, played.dumps) == (first.path, False, 1)
    assert len(steps) == 2
    assert sorted(path.name for path in folder.iterdir()) == sorted(["lock", first.path.name])


@pytest.mark.parametrize("damage", ["a byte", "the end", "everything"])
def test_a_damaged_archive_is_removed_and_not_used(
    folder: Path, played: PlayedJava, java: Java, damage: str
) -> None:
    path = archive.warm(java=java).path
    content = bytearray(path.read_bytes())
    if damage == "a byte":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[:-1] if damage == "the end" else b"" if damage == "everything" else content)
    assert archive.find(java) is None
    assert not path.exists()
    assert archive.warm(java=java).made


def test_an_archive_of_another_java_or_spark_is_not_used(
    folder: Path, played: PlayedJava, java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.warm(java=java)
    assert archive.find(Java(java.home, "99.0.1", "PATH")) is None
    assert archive.find(Java(java.home.parent, java.version, "PATH")) is None
    monkeypatch.setattr("pyspark.__version__", "4.3.99")
    assert archive.find(java) is None


def test_recently_used_archives_are_kept(folder: Path, played: PlayedJava, java: Java) -> None:
    versions = [Java(java.home, f"17.0.{n}", "PATH") for n in range(archive.KEPT + 1)]
    for age, version in enumerate(versions[:-1]):
        os.utime(archive.warm(java=version).path, (age, age))
    assert archive.find(versions[0]) is not None  # used now, so the second is the oldest
    archive.warm(java=versions[-1])
    assert [archive.find(version) is not None for version in versions] == [True, False, True, True]


def test_concurrent_callers_make_one_archive(folder: Path, played: PlayedJava, java: Java) -> None:
    results: list[archive.Archive] = []
    makers = [threading.Thread(target=lambda: results.append(archive.warm(java=java))) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert sorted(result.made for result in results) == [False, False, False, True]
    assert played.dumps == 1
    assert len({result.path for result in results}) == 1


def test_files_of_a_killed_process_are_removed_by_the_next(
    folder: Path, played: PlayedJava, java: Java
) -> None:
    (folder / "making-xyz").mkdir(parents=True)
    (folder / "making-xyz" / "archive").write_bytes(b"half")
    assert archive.find(java) is None
    archive.warm(java=java)
    assert not (folder / "making-xyz").exists()


def test_a_failed_archive_is_retried_by_warm_but_not_in_the_background(
    folder: Path, played: PlayedJava, java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[object] = []
    monkeypatch.setattr("atexit.register", lambda *call: registered.append(call))
    monkeypatch.setattr(archive, "_waiting_for_exit", [])
    monkeypatch.setattr("os.nice", lambda step: 0)
    played.fails = True
    archive.main()
    archive.make_at_exit(java)
    assert registered == []
    with pytest.raises(ArchiveFailed):
        archive.warm(java=java)
    played.fails = False
    assert archive.warm(java=java).made
    archive.discard(archive.warm(java=java).path)
    archive.make_at_exit(java)
    archive.make_at_exit(java)
    assert len(registered) == 1


@pytest.mark.parametrize(("policy", "used", "made"), [("auto", True, 1), ("use", True, 0), ("off", False, 0)])
def test_an_environment_variable_controls_the_use_and_making_of_archives(
    folder: Path,
    played: PlayedJava,
    java: Java,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    used: bool,
    made: int,
) -> None:
    archive.warm(java=java)
    registered: list[object] = []
    monkeypatch.setattr("atexit.register", lambda *call: registered.append(call))
    monkeypatch.setattr(archive, "_waiting_for_exit", [])
    monkeypatch.setenv("OTTLA_SPARK_ARCHIVE", policy)
    assert (archive.find(java) is not None) == used
    archive.make_at_exit(java)
    assert len(registered) == made


WARM = """
from ottla.pipeline.spark.archive import warm
result = warm(print)
print("made" if result.made else "found", result.path)
"""

MAPPED = """
from pathlib import Path
from ottla.pipeline.spark.session import spark_session
spark = spark_session("archive", "local[2]", {"spark.driver.memory": "1g"})
print(spark.range(10).count())
maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
print({line.split()[-1] for line in maps.splitlines() if "spark-archive" in line})
"""


def output_of(code: str) -> str:
    with program(code) as process:
        output, errors = process.communicate(timeout=800)
    assert (process.returncode, errors) == (0, ""), errors
    return output


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["the machine's Java", "the wheel's Java"])
def test_a_real_archive_survives_a_kill_and_concurrency_and_is_dropped_when_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    java = find_java({} if kind == "the wheel's Java" else None)
    monkeypatch.setenv("JAVA_HOME", str(java.home))
    monkeypatch.setenv("OTTLA_SPARK_ARCHIVE", "use")

    with program(WARM) as killed:
        until(lambda: any(folder.glob("making-*")), "the maker is at work")
        os.kill(killed.pid, signal.SIGKILL)
    assert archive.find(java) is None
    assert output_of(MAPPED) == "10\nset()\n"

    with program(WARM) as one, program(WARM) as other:
        ends = [maker.communicate(timeout=800)[0].splitlines()[-1].split() for maker in (one, other)]
    assert sorted(end[0] for end in ends) == ["found", "made"]
    path = archive.find(java)
    assert path is not None
    assert {end[1] for end in ends} == {str(path)}
    assert not list(folder.glob("making-*"))
    assert output_of(MAPPED) == f"10\n{ {str(path)} }\n"

    with open(path, "rb+") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"damage")
    assert output_of(MAPPED) == "10\nset()\n"
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_first_program_starts_a_process_that_makes_the_archive(folder: Path, java: Java) -> None:
    environment = {**os.environ, "OTTLA_SPARK_ARCHIVE": "auto"}
    code = "from ottla.pipeline.spark.session import spark_session\nspark_session('first', 'local[2]')"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    until(lambda: archive.find(java) is not None, "the background has made the archive", 900)
