"""Java's properties format, in which a server.properties is written.

    # a comment, and so is a line that starts with !
    log.retention.hours = 72
    listeners: PLAINTEXT://:9092
    log.dirs /var/lib/ottla
    description = a value that goes on \\
                  in the next line

Key and value are parted by `=`, `:` or white space. A backslash takes the meaning off the character behind it
(`\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` have their own) and at the end of a line joins the next one to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_SPACE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """The text is not in the properties format; says which line and why."""


class Property(NamedTuple):
    key: str
    value: str
    line: int


def decode_properties(data: bytes) -> str:
    """The text of a properties file: UTF-8, or else Latin-1 as the Java of old wrote it."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str) -> list[Property]:
    """The properties in the order of the text. A key may come twice; for Java the last one counts."""
    return [_property(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, with continued lines joined, and the number of the first of them."""
    joined, start = "", 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.lstrip(_SPACE)
        if not start:
            if not line or line[0] in "#!":
                continue
            start = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield start, joined + line
        joined, start = "", 0
    if start:
        yield start, joined


def _property(line: str, number: int) -> Property:
    end = 0
    while end < len(line) and line[end] not in "=:" + _SPACE:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return Property(_unescape(line[:end], number), _unescape(rest, number), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            try:
                out.append(chr(int(digits, 16)) if len(digits) == 4 else _missing_digits())
            except ValueError:
                raise PropertiesError(f"line {number}: \\u must be followed by four hex digits") from None
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    # Java writes characters beyond the first 65536 as two escapes; put such pairs together.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _missing_digits() -> str:
    raise ValueError
