"""Every pipeline on the page of examples does what its test beside it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ottla.pipeline.testing  # noqa: F401 - pytester forgets modules that are first imported in a run of its own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs/pipeline/examples.md"
EXAMPLES = ("enrichment", "changelog", "windows", "alarms", "orders", "users", "replay")


def files_of_the_page() -> dict[str, str]:
    text = PAGE.read_text()
    named = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    named += re.findall(r"`([\w./-]+)`:\n\n```json\n(.*?)```", text, re.DOTALL)
    assert len({name for name, _ in named}) == len(named), "two files of one name"
    return dict(named)


def test_every_example_has_a_test() -> None:
    found = [name for name in files_of_the_page() if name.endswith(".py")]
    assert found == [name for each in EXAMPLES for name in (f"{each}.py", f"test_{each}.py")]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_passes_its_test(example: str, pytester: pytest.Pytester, spark: SparkSession) -> None:
    """In this process, where the session that runs is the one that the fixture finds and leaves running."""
    files = files_of_the_page()
    for name, text in files.items():
        if name in (f"{example}.py", f"test_{example}.py") or not name.endswith(".py"):
            path = pytester.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert spark.range(1).count() == 1
