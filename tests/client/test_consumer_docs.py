"""The programs of the pages on the consumer work as they stand there.

Those that make a second write harmless have tests of their own: test_idempotence_recipes.py.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from client.consuming import PATIENCE, fill, group, numbers

DOCS = Path(__file__).parents[2] / "docs" / "client"
PROGRAMS = [
    pytest.param(program, id=f"{page}-{number}", marks=[pytest.mark.slow] if "psycopg" in program else [])
    for page in ("consumer", "delivery", "databases")
    for number, program in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    )
    if page != "databases" or "DatabaseOffsets" in program
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_a_page_works(
    request: pytest.FixtureRequest,
    servers: str,
    make_topic: Callable[[int], str],
    tmp_path: Path,
    program: str,
) -> None:
    topic, name = make_topic(1), group()
    fill(servers, topic, numbers(0, 5))
    if "psycopg" in program:
        program = program.replace("dbname=billing", request.getfixturevalue("database"))
    names = {"127.0.0.1:9092": servers, '"orders"': f'"{topic}"', '"billing': f'"{name}'}
    for ours, theirs in names.items():
        assert ours in program
        program = program.replace(ours, theirs)
    program = program.replace('"invoices"', f'"{topic}-invoices"')
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            printed = read_values(process, 5)
        finally:
            late.cancel()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
    assert printed == {b"%d" % number for number in range(5)}, errors.decode()


def read_values(process: subprocess.Popen[bytes], count: int) -> set[bytes]:
    """The first `count` different values that a program prints, or fewer if it ends.

    A pool prints from several threads: the values come in any order, and a line may hold two.
    """
    assert process.stdout is not None
    values: set[bytes] = set()
    while len(values) < count and (line := process.stdout.readline()):
        values.update(re.findall(rb"b'(\d+)'", line))
    return values
