"""What commands print: tables for people, JSON for programs, and numbers written for eyes.

On a terminal a table is drawn with Rich; into a pipe the same table goes as plain aligned columns, which
`awk` and `diff` can work with and which costs no import. JSON is one document per command, indented for a
terminal, and has raw numbers where the table has "1.2 MB".

Names of groups, members and clients are chosen by clients. In tables they are escaped and cut, so that
none can forge a row or repaint the screen; JSON has them whole, with control characters as `\\uXXXX`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.printable import escaped

if TYPE_CHECKING:
    from rich.table import Table

# DEL, the C1 controls (some terminals obey them), separators of lines, marks that turn the direction of text,
# and halves of surrogate pairs, which cannot be written at all.
_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


class Column(NamedTuple):
    """A column: its title, whether it holds numbers (right-aligned), and the style on a terminal."""

    title: str
    number: bool = False
    style: str = ""


def print_json(document: Any, *, one_line: bool = False) -> None:
    indent = 2 if sys.stdout.isatty() and not one_line else None
    write(json_text(document, indent) + "\n")


def json_text(document: Any, indent: int | None = None) -> str:
    """JSON in which also those control characters are escaped that JSON itself leaves alone."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_table(columns, rows, title))
    else:
        write(plain_table(columns, rows))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other, aligned."""
    width = max(len(name) for name, _ in fields)
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    write("".join(f"{bold}{name.ljust(width)}{plain}  {escaped(value)}\n" for name, value in fields))


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, titles in capitals; the last column is not padded."""
    table = [[column.title.upper() for column in columns], *([escaped(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    lines = []
    for row in table:
        cells = (
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, show_edge=False
    )
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", style=column.style)
    for row in rows:
        table.add_row(*(Text(escaped(cell)) for cell in row))
    return table


def say(text: str) -> None:
    """A line about the work, not part of its result: on stderr, so that it never mixes with data."""
    print(text, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Text to stdout; when the reader has gone (`| head`), the command ends in silence."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        leave_quietly()


def leave_quietly() -> None:
    """End with success and no complaint about the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def size_text(count: int) -> str:
    """Bytes as people write them: 0 B, 999 B, 1.5 KB, 20 MB; a step is 1024."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{count} B"
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def count_text(count: int, noun: str = "", plural: str = "") -> str:
    """1,234 or `1,234 records`, with the noun in the right number."""
    if not noun:
        return f"{count:,}"
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def seconds_text(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
