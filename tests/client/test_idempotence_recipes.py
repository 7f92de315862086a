"""The recipes of docs/client/databases.md that make a second write harmless, as they stand there.

A program is killed (SIGKILL) at a random moment and started again as another group, so that it gets every
record once more. In the end its tables must be as if each record had come once.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import ottla
from client.consuming import PATIENCE, group, until

PAGE = Path(__file__).parents[2] / "docs" / "client" / "databases.md"
RECIPES = dict(
    re.findall(
        r"^\*\*([\w ]+)\.\*\* (?:(?!```).)*?^```python\n(.*?)^```$",
        PAGE.read_text(),
        re.DOTALL | re.MULTILINE,
    )
)
ACCOUNTS = 3


def test_the_page_has_three_recipes() -> None:
    assert list(RECIPES) == ["A unique constraint", "A precondition", "Record and check"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("kills", "records"), [(1, 300), pytest.param(30, 6000, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_a_recipe_counts_each_record_once_however_often_it_comes(
    servers: str, make_topic: Callable[[int], str], tmp_path: Path, name: str, kills: int, records: int
) -> None:
    topic = make_topic(1)
    again = 10 if name == "Record and check" else 0
    with ottla.Producer(servers) as producer:
        for number in [*range(records), *range(again)]:
            headers = {"id": f"order-{number}"}
            producer.send(topic, str(number), f"account-{number % ACCOUNTS}", headers=headers)
    program = RECIPES[name].replace("127.0.0.1:9092", servers).replace('"orders"', f'"{topic}"')
    seed = int.from_bytes(os.urandom(4), "big")
    chance = random.Random(seed)
    for _ in range(kills):
        with running(program, tmp_path) as process:
            assert next(values(process), None) is not None
            moment = time.monotonic() + chance.random() * 0.05
            until(lambda: time.monotonic() > moment, "the moment")  # noqa: B023
    with running(program, tmp_path) as process:
        printed = values(process)
        seen = {next(printed, b"") for _ in range(records + again)}
    assert seen == {b"%d" % number for number in range(records)}, f"seed {seed}"
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection:
        if name == "A unique constraint":
            amounts = [row[0] for row in connection.execute("SELECT amount FROM invoices ORDER BY place")]
            assert amounts == list(range(records)), f"seed {seed}"
            return
        balances = dict(connection.execute("SELECT account, amount FROM balances"))
    expected: Counter[str] = Counter()
    for number in range(records):
        expected[f"account-{number % ACCOUNTS}"] += number
    assert balances == expected, f"seed {seed}"


@contextmanager
def running(program: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program as a new group; killed in the end, or when it is late."""
    program = program.replace('"billing"', f'"{group()}"')
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=folder) as process:
        late = threading.Timer(2 * PATIENCE, process.kill)
        late.start()
        try:
            yield process
        finally:
            late.cancel()
            process.kill()


def values(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.strip()[2:-1]
