"""Reads the tables of keys, which are written as plain text so that people can read them too.

    # Section
    name            TYPE  default  allowed  [mode]  [importance]  [mark]
        <- broker.key, other.broker.key * factor
        One or more lines of documentation.

`default` is `null` for none and `''` for empty. `allowed` is `-` (anything), `>=1`, `1..9`, `a|b|c` (one of),
`~a|b` (one of, in any case), `[a,b]` (a list of these) or the name of a rule with a `@`. The line with the
arrow, only for topic and group keys, names the broker keys that stand in. The mark `unused` says that the
key has no effect, `internal` hides it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from ottla.config.keys import ConfigKey, Importance, Mode, Rule, Scope, Synonym, Type, parse

_PAIR = r"[0-9]+:[0-9]+"
_RESET = r"latest|earliest|by_duration:P(?=.)([0-9]+D)?(T(?=.)([0-9]+H)?([0-9]+M)?([0-9.]+S)?)?"
_IMPORTANCES = {importance.value: importance for importance in Importance}
_MODES = {mode.value: mode for mode in Mode}
_TYPES = {kind.name: kind for kind in Type}

_NAMED_RULES = {
    "@gzip-level": Rule("between 1 and 9, or -1", lambda value: value == -1 or bool(1 <= value <= 9)),
    "@replicas": Rule(
        "* or a list of partition:broker pairs",
        lambda value: value in ([], ["*"]) or all(re.fullmatch(_PAIR, pair) for pair in value),
    ),
    "@false": Rule("false, since there is no tiered storage", lambda value: value is False),
    "@share-reset": Rule(
        "latest, earliest or by_duration:PnDTnHnMnS", lambda value: bool(re.fullmatch(_RESET, value))
    ),
    "@not-zero": Rule("at least 1, or -1 for no limit", lambda value: bool(value)),
}


def rows(table: str, scope: Scope, mode: Mode, *, used: bool = True) -> Iterator[ConfigKey]:
    """The keys of a table; `mode` is for rows that name none."""
    section = ""
    fields: list[str] = []
    synonyms: tuple[Synonym, ...] = ()
    doc: list[str] = []
    for line in (*table.splitlines(), "# end"):
        if not line or line.isspace():
            continue
        if line.startswith("    "):
            text = line.strip()
            if text.startswith("<- "):
                synonyms = tuple(map(_synonym, text[3:].split(",")))
            else:
                doc.append(text)
            continue
        if fields:
            text = " ".join(doc) or f"Without effect. {section}."
            yield _key(fields, synonyms, text, scope, mode, section, used)
            fields, synonyms, doc = [], (), []
        if line.startswith("# "):
            section = line[2:]
        else:
            fields = line.split()


def _key(
    fields: list[str],
    synonyms: tuple[Synonym, ...],
    doc: str,
    scope: Scope,
    mode: Mode,
    section: str,
    used: bool,
) -> ConfigKey:
    name, type_name, default, allowed, *more = fields
    kind = _TYPES[type_name]
    importance, internal = Importance.MEDIUM, False
    for word in more:
        if word in _MODES:
            mode = _MODES[word]
        elif word == "internal":
            internal = True
        elif word == "unused":
            used = False
        else:
            importance = _IMPORTANCES[word]
    value = None if default == "null" else parse(kind, "" if default == "''" else default)
    return ConfigKey(
        name, kind, value, _rule(allowed), scope, mode, doc, importance, synonyms, section, used, internal
    )


def _synonym(text: str) -> Synonym:
    name, _, factor = text.partition("*")
    return Synonym(name.strip(), int(factor) if factor else 1)


@cache
def _rule(text: str) -> Rule | None:
    if text == "-":
        return None
    if text.startswith("@"):
        return _NAMED_RULES[text]
    if text.startswith(">="):
        return _at_least(int(text[2:]))
    if text.startswith("["):
        return _each_of(text[1:-1].split(","))
    if ".." in text:
        least, _, most = text.partition("..")
        return _between(int(least), int(most))
    if text.startswith("~"):
        return _one_of(text[1:].split("|"), str.lower)
    return _one_of(text.split("|"), str)


def _at_least(least: int) -> Rule:
    return Rule(f"at least {least}", lambda value: bool(value >= least))


def _between(least: int, most: int) -> Rule:
    return Rule(f"between {least} and {most}", lambda value: bool(least <= value <= most))


def _one_of(names: list[str], fold: Callable[[str], str]) -> Rule:
    allowed = {fold(name) for name in names}
    return Rule("one of " + ", ".join(names), lambda value: fold(value) in allowed)


def _each_of(names: list[str]) -> Rule:
    return Rule("a list of " + ", ".join(names), lambda value: all(name in names for name in value))
