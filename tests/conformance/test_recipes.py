"""The recipes of docs/transactions.md keep their promise when their process is killed in the middle."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from conformance.test_transactions import committed, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "transactions.md"
RECORDS = 400
KILLED_AT = (60, 200)
"""So many outputs are there when the process is killed."""
DEADLINE = 120.0
WORK = """
import time

def invoice(message):
    time.sleep(0.003)
    return b"invoice for " + message.value()

"""
PARTS: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
SETUP, AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE = PARTS
RECIPES = {"at-most-once": AT_MOST_ONCE, "at-least-once": AT_LEAST_ONCE, "exactly-once": EXACTLY_ONCE}


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {DEADLINE:g} s"


def run_until(program: str, *moments: tuple[Callable[[], bool], str]) -> None:
    """Run it up to each of these moments, and kill it then."""
    for condition, what in moments:
        process = subprocess.Popen([sys.executable, "-c", program])
        try:
            until(condition, what)
            assert process.poll() is None, "it has ended by itself"
        finally:
            process.kill()
            process.wait()


def program_of(recipe: str, bootstrap: str, orders: str, invoices: str, group: str) -> str:
    names = {"127.0.0.1:9092": bootstrap, '"orders"': f'"{orders}"', '"invoices"': f'"{invoices}"'}
    program = SETUP + WORK + RECIPES[recipe]
    for name, ours in {**names, '"billing"': f'"{group}"', '"billing-0"': f'"{group}-0"'}.items():
        assert name in program or name == '"billing-0"'
        program = program.replace(name, ours)
    return program


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_keeps_its_promise_when_its_process_is_killed(
    bootstrap: str, make_topic: Callable[..., str], recipe: str
) -> None:
    orders, invoices = make_topic(), make_topic()
    group = f"billing-{uuid.uuid4().hex[:8]}"
    program = program_of(recipe, bootstrap, orders, invoices, group)
    feeder = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        feeder.produce(orders, b"%d" % number, partition=0)
    assert not feeder.flush(DEADLINE)

    def has_written(count: int) -> Callable[[], bool]:
        return lambda: len(read(bootstrap, invoices, committed=False)) >= count

    def is_done() -> bool:
        return committed(bootstrap, group, orders, stable=True) == (RECORDS, 0)

    run_until(program, *((has_written(count), f"{count} invoices") for count in KILLED_AT))
    run_until(program, (is_done, "end"))
    counts = Counter(read(bootstrap, invoices))
    expected = {b"invoice for %d" % number for number in range(RECORDS)}
    assert set(counts) <= expected
    if recipe != "at-least-once":
        assert max(counts.values()) == 1, "twice"
    if recipe != "at-most-once":
        assert set(counts) == expected, "missing"


@pytest.mark.parametrize("recipe", ["at-least-once", "exactly-once"])
def test_a_recipe_ends_and_commits_nothing_when_a_record_cannot_be_written(
    bootstrap: str, make_topic: Callable[..., str], recipe: str
) -> None:
    orders, invoices = make_topic(), make_topic(config={"max.message.bytes": "200"})
    group = f"billing-{uuid.uuid4().hex[:8]}"
    feeder = Producer({"bootstrap.servers": bootstrap})
    feeder.produce(orders, b"much" * 1000, partition=0)
    assert not feeder.flush(DEADLINE)
    program = program_of(recipe, bootstrap, orders, invoices, group)
    ended = subprocess.run([sys.executable, "-c", program], timeout=DEADLINE, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "MSG_SIZE_TOO_LARGE" in ended.stderr or "_INCONSISTENT" in ended.stderr, ended.stderr
    assert committed(bootstrap, group, orders, stable=True)[0] == -1
