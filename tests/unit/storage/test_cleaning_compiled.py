"""The loops of compaction do the same when they are compiled, by mypyc, from the very same files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ottla

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

COMPILED = ("protocol/varints.py", "storage/cleaning/key_map.py", "storage/cleaning/record_loops.py")

CLEAN = """
import hashlib, json, random, sys, tempfile, time
from pathlib import Path
from ottla.protocol.records import Record, encode_batch
from ottla.storage.cleaning import key_map, record_loops
from ottla.storage.cleaning.decisions import CleanableSegment
from ottla.storage.cleaning.job import CleaningJob, run
from ottla.storage.files import RealDisk
from ottla.storage.log_config import LogConfig

rng = random.Random(5)
folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
path = folder / "00000000000000000000.log"
with path.open("wb") as out:
    for base in range(0, 60_000, 200):
        rows = [
            Record(base + n, 1_700_000_000_000 + n,
                   None if rng.random() < 0.02 else b"k%d" % rng.randrange(9000),
                   None if rng.random() < 0.1 else rng.randbytes(rng.randrange(200)), [])
            for n in range(200)
        ]
        out.write(encode_batch(rows, base_offset=base, codec=rng.choice([0, 0, 3, 4])))
size = path.stat().st_size
job = CleaningJob("t", str(folder), [CleanableSegment(0, size, 0, 0)], 60_000, 0, 60_000, 1_700_000_000_000,
                  LogConfig(), 1000, {}, 1 << 20)
began = time.process_time()
*_, result = run(job, RealDisk())
print(json.dumps({
    "compiled": key_map.__file__.endswith(".so") and record_loops.__file__.endswith(".so"),
    "seconds": time.process_time() - began,
    "left": hashlib.sha256((folder / "00000000000000000000.log.cleaned").read_bytes()).hexdigest(),
    "records": result.records_after,
}))
"""


def clean(source: Path, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", CLEAN, str(folder)],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_compiled_loops_leave_the_same_bytes_and_are_faster(tmp_path: Path) -> None:
    plain_source = Path(ottla.__file__).parents[1]
    source = tmp_path / "src"
    shutil.copytree(plain_source / "ottla", source / "ottla", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "mypyc", *(f"ottla/{name}" for name in COMPILED)],
        cwd=source,
        env={"MYPYPATH": str(source), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )
    plain, compiled = clean(plain_source, tmp_path), clean(source, tmp_path)
    assert (plain["compiled"], compiled["compiled"]) == (False, True)
    assert plain["records"] > 5000
    assert compiled["left"] == plain["left"]
    assert compiled["seconds"] < plain["seconds"]
