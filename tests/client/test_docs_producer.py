"""Every program on the page of the producer runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/client/producer.md"
PROGRAMS: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def title(number: int) -> str:
    before = PAGE.read_text().split(PROGRAMS[number])[0]
    return str(re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1])


@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=title)
def test_a_program_on_the_page_runs(
    number: int, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = PROGRAMS[number].replace("localhost:9092", servers)
    exec(compile(program, f"{PAGE.name}, program {number + 1}", "exec"), {"__name__": "__main__"})
