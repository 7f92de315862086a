"""Text that others chose, made fit for a log line, an error message or a terminal.

Client ids, group ids, topic names and the like come from the network and may hold anything: newlines that
forge a log line, escape sequences that repaint a terminal, 32 KB of one letter. Code that writes such a text
for people passes it through `shown`. What cannot be printed is written as a Python escape (`\\n`, `\\x1b`,
`\\u202e`), so the result is one line; what is too long is cut, and the result says how long it was.
"""

from __future__ import annotations

from collections.abc import Iterable

LIMIT = 256
"""Characters of one name. A legal topic name has at most 249, so it is never cut."""


def shown(text: str, limit: int = LIMIT) -> str:
    """`text` as one printable line of about `limit` characters at most."""
    if len(text) <= limit:
        return text if text.isprintable() else _cut(escaped(text), limit, len(text))
    return _cut(escaped(text[:limit]), limit, len(text))


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a row, the first few of them: `a, b, c and 4,211 more`."""
    chosen = list(names)
    text = ", ".join(shown(name) for name in chosen[:most])
    return f"{text} and {len(chosen) - most:,} more" if len(chosen) > most else text


def escaped(text: str, keep: str = "") -> str:
    """`text` with everything that cannot be printed written as an escape, except the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in keep else _escape(c) for c in text])


def _cut(text: str, limit: int, length: int) -> str:
    if len(text) <= limit and length <= limit:
        return text
    return f"{text[:limit]}... ({length:,} characters)"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
