"""The loops over records do the same when they are compiled, by mypyc, from the very same file."""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from ottla.protocol import varints

pytestmark = pytest.mark.slow

SOURCE = Path(varints.__file__)

SAME = """
import json, random, sys, timeit
sys.path.insert(0, sys.argv[1])
import compiled_varints as compiled
from ottla.protocol import varints as plain

assert compiled.__file__.endswith(".so"), compiled.__file__
rng = random.Random(11)

def some(size):
    return None if rng.random() < 0.1 else rng.randbytes(rng.randrange(size))

def outcome(module, function, *arguments):
    try:
        return getattr(module, function)(*arguments)
    except module.InvalidRecords as error:
        return type(error).__name__, str(error)

for turn in range(400):
    rows = [
        (n, rng.randrange(2**42), some(200), some(300), [(f"h{i}", some(9)) for i in range(rng.randrange(3))])
        for n in range(rng.randrange(1, 60))
    ]
    body = bytes(plain.encode_records(rows, 0, rows[0][1]))
    assert bytes(compiled.encode_records(rows, 0, rows[0][1])) == body
    for damaged in (False, True):
        if damaged:
            harmed = bytearray(body)
            for _ in range(3):
                harmed[rng.randrange(len(harmed))] = rng.randrange(256)
            body = bytes(harmed)
        for call in (
            ("decode_records", body, len(rows), 5, 100, -1),
            ("decode_records", body, len(rows), 5, 100, 7),
            ("check_records", body, len(rows), bool(turn % 2)),
        ):
            assert outcome(compiled, *call) == outcome(plain, *call), call[0]

rows = [(n, n, b"key", b"v" * 100, []) for n in range(20000)]
body = bytes(plain.encode_records(rows, 0, 0))
print(json.dumps({
    name: min(timeit.repeat(lambda: module.check_records(body, 20000, False), number=1, repeat=5))
    for name, module in (("plain", plain), ("compiled", compiled))
}))
"""


def test_compiled_loops_give_the_same_and_are_faster(tmp_path: Path) -> None:
    (tmp_path / "compiled_varints.py").write_text(SOURCE.read_text())
    subprocess.run(
        [sys.executable, "-m", "mypyc", "compiled_varints.py"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=110,
    )
    (tmp_path / "compiled_varints.py").unlink()
    done = subprocess.run(
        [sys.executable, "-c", SAME, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)
    assert seconds["compiled"] < seconds["plain"] / 2, seconds


def test_the_interpreted_loop_takes_microseconds_a_record() -> None:
    rows: list[varints.Row] = [(n, n, b"key", b"v" * 100, []) for n in range(10_000)]
    body = bytes(varints.encode_records(rows, 0, 0))
    best = min(timeit.repeat(lambda: varints.check_records(body, 10_000, False), number=1, repeat=5))
    assert best / 10_000 < 10e-6
