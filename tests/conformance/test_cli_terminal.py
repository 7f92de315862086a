"""What a person at a terminal sees."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.command import OTTLA, Command


@pytest.fixture
def ottla(bootstrap: str) -> Command:
    return Command(bootstrap)


def test_tables_are_drawn(ottla: Command, topic: str) -> None:
    with ottla.at_terminal("topic", "list") as terminal:
        code, screen = terminal.finish()
    assert code == 0
    assert "─" in screen
    assert "\x1b[1m" in screen
    assert topic in screen


def test_json_is_indented_and_still_json(ottla: Command, topic: str) -> None:
    with ottla.at_terminal("topic", "describe", topic, "--json") as terminal:
        code, screen = terminal.finish()
    assert code == 0
    assert json.loads(screen)["name"] == topic
    assert screen.startswith("{\n  ")


def test_typed_lines_are_sent_until_ctrl_d(ottla: Command, topic: str) -> None:
    with ottla.at_terminal("produce", topic) as terminal:
        terminal.wait_for("Ctrl-D ends.")
        terminal.type("hello\n")
        terminal.type("\x04")
        code, screen = terminal.finish()
    assert code == 0
    assert "1 record, 5 B in " in screen
    assert ottla.ok("consume", topic).lines == ["hello"]


def test_progress_is_shown_while_a_file_is_sent_and_removed_at_the_end(
    ottla: Command, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    file = tmp_path / "lines"
    file.write_text("".join(f"{number} {'x' * 100}\n" for number in range(200_000)))
    with ottla.at_terminal("produce", topic, "--file", str(file), columns=60) as terminal:
        code, screen = terminal.finish()
    assert code == 0
    shown = [part.split("\x1b[0m")[0] for part in screen.split("\r\x1b[2K\x1b[2m")[1:]]
    assert len(shown) >= 2
    assert all(" record" in line and len(line) < 60 for line in shown), shown
    last = screen.split("\r\x1b[2K")[-1]
    assert last.startswith("200,000 records, ")
    assert last.rstrip().endswith(f"/s to {topic}")


def test_consumed_records_have_dimmed_metadata(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, "--key", "k", input="\x1b[31mred\n")
    with ottla.at_terminal("consume", topic, "--keys", "--offsets") as terminal:
        code, screen = terminal.finish()
    assert code == 0
    first, second = screen.splitlines()
    assert first == "\x1b[2m0:0\x1b[0m\t\x1b[36mk\x1b[0m\t\\x1b[31mred"
    assert "1 record, " in second


def test_consuming_an_empty_topic_says_that_it_is_empty(ottla: Command, topic: str) -> None:
    with ottla.at_terminal("consume", topic) as terminal:
        assert "no records" in terminal.finish()[1]


def test_following_ends_with_ctrl_c_and_a_summary(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, input="v\n")
    with ottla.at_terminal("consume", topic, "--follow") as terminal:
        terminal.wait_for("v\r\n")
        terminal.interrupt()
        code, screen = terminal.finish()
    assert code == 130
    assert "1 record, " in screen
    assert "Traceback" not in screen


def test_an_error_is_marked_in_red(ottla: Command, name: str) -> None:
    with ottla.at_terminal("consume", name) as terminal:
        code, screen = terminal.finish()
    assert code == 1
    assert screen.startswith("\x1b[1;31merror:\x1b[0m there is no topic")


def test_help_lists_the_commands(ottla: Command) -> None:
    shown = ottla.ok("--help").out
    for command in ("serve", "topic", "produce", "consume", "log", "version"):
        assert f"\n  {command} " in shown
    assert ottla.ok("--version").out == ottla.ok("version").out
    assert ottla.ok("version", "--json").document["ottla"]


def test_help_imports_no_slow_modules() -> None:
    """The budget is 0.2 s on an idle machine; what breaks it is an import, and that a busy one shows too."""
    code = "import sys; import ottla.cli.main; print(*sorted(sys.modules))"
    modules = subprocess.run(
        [OTTLA.with_name("python"), "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    for slow in (
        "rich",
        "asyncio",
        "cramjam",
        "ottla.protocol.apis",
        "ottla.broker",
        "ottla.storage",
        "sqlite3",
    ):
        assert slow not in modules, slow
