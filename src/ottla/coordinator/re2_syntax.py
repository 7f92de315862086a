"""The language of regular expressions that subscriptions use: RE2's, read into a small tree.

There are no back references and no look-around, and repetition has a limit, so that whatever is accepted here
can be matched in one pass over a name (`regex_subscriptions`). Topic names are ASCII, hence a class of
characters is a mask of 128 bits.

The errors are worded as Kafka words them.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

MAX_REPEAT = 1000
_MAX_DEPTH = 100

ALL = (1 << 128) - 1


class InvalidExpression(ValueError):
    """The expression is not one of RE2's, or is too large."""


class Node(NamedTuple):
    """A piece of the expression.

    `kind` is one of: class (of the characters in `mask`), begin and end (of the name), word and not-word
    (boundaries), cat, alt, repeat (from `low` to `high` times, -1 without limit) and empty.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    mask: int = 0
    low: int = 0
    high: int = 0


EMPTY = Node("empty")


def _mask(text: str) -> int:
    return sum(1 << ord(c) for c in set(text))


def _span(first: str, last: str) -> int:
    return sum(1 << code for code in range(ord(first), min(ord(last), 127) + 1))


_DIGIT = _span("0", "9")
_LOWER, _UPPER = _span("a", "z"), _span("A", "Z")
WORD = _DIGIT | _LOWER | _UPPER | _mask("_")
_SPACE = _mask("\t\n\f\r ")
_PERL = {"d": _DIGIT, "w": WORD, "s": _SPACE}
_POSIX = {
    "alnum": _DIGIT | _LOWER | _UPPER, "alpha": _LOWER | _UPPER, "ascii": ALL, "blank": _mask("\t "),
    "cntrl": _span("\0", "\x1f") | _mask("\x7f"), "digit": _DIGIT, "graph": _span("!", "~"), "lower": _LOWER,
    "print": _span(" ", "~"), "punct": _span("!", "~") & ~(_DIGIT | _LOWER | _UPPER),
    "space": _SPACE | _mask("\v"),
    "upper": _UPPER, "word": WORD, "xdigit": _DIGIT | _span("a", "f") | _span("A", "F"),
}  # fmt: skip
_ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SCRIPTS = (
    "Arabic Armenian Bengali Bopomofo Braille Cherokee Coptic Cyrillic Devanagari Ethiopic Georgian Gothic "
    "Greek Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Javanese Kannada Katakana Khmer Lao "
    "Malayalam Mongolian Myanmar Ogham Oriya Runic Sinhala Syriac Tamil Telugu Thaana Thai Tibetan Yi"
)  # of which no letter is ASCII
_CATEGORIES = (
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
)


def _unicode_class(name: str) -> int:
    if name == "Any":
        return ALL
    if name in _CATEGORIES.split():
        return sum(1 << code for code in range(128) if unicodedata.category(chr(code)).startswith(name))
    if name == "Latin":
        return _LOWER | _UPPER
    if name == "Common":
        return ALL & ~(_LOWER | _UPPER)
    if name in _SCRIPTS.split():
        return 0
    raise InvalidExpression("invalid character class range")


def _folded(mask: int) -> int:
    """The mask with each letter in both cases."""
    return mask | (mask & _UPPER) << 32 | (mask & _LOWER) >> 32


class _Flags(NamedTuple):
    fold: bool = False  # i
    many_lines: bool = False  # m
    dot_all: bool = False  # s
    # U swaps greedy and reluctant, which makes no difference to whether the whole matches.


def parse(expression: str) -> Node:
    """The tree of an expression; InvalidExpression if it is none."""
    return _Parser(expression).parse()


class _Parser:
    """Recursive descent over the expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags = _Flags()
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise InvalidExpression("regexp/syntax: internal error")  # how Kafka names a ) too many
        return node

    def _alternatives(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidExpression("expression nests too deeply")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else Node("alt", tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._text.startswith("\\Q", self._at):
                parts += self._quoted()
                if parts:
                    parts[-1] = self._repeated(parts[-1])
                continue
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else Node("cat", tuple(parts)) if parts else EMPTY

    def _quoted(self) -> list[Node]:
        end = self._text.find("\\E", self._at + 2)
        literal = self._text[self._at + 2 : end if end >= 0 else None]
        self._at = end + 2 if end >= 0 else len(self._text)
        return [self._literal(c) for c in literal]

    def _repeated(self, node: Node) -> Node:
        """`node` with the repetition that follows it, if one does."""
        times = self._repetition()
        if times is None:
            return node
        self._take("?")  # reluctant: the same whole matches
        before = self._at
        if self._repetition() is not None:
            self._at = before
            raise InvalidExpression("invalid nested repetition operator")
        return Node("repeat", (node,), low=times[0], high=times[1])

    def _repetition(self) -> tuple[int, int] | None:
        for sign, times in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._take(sign):
                return times
        if not self._text.startswith("{", self._at):
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",") if end >= 0 else ("", "", "")
        if not _is_number(low) or (high and not _is_number(high)):
            return None  # a brace that stands for itself
        self._at = end + 1
        least = int(low) if len(low) < 9 else MAX_REPEAT + 1
        most = (-1 if not high else int(high) if len(high) < 9 else MAX_REPEAT + 1) if comma else least
        if least > MAX_REPEAT or most > MAX_REPEAT or 0 <= most < least:
            raise InvalidExpression("invalid repeat count")
        return least, most

    def _atom(self) -> Node | None:
        c = self._text[self._at]
        if c in "*+?" or (c == "{" and self._is_repetition()):
            raise InvalidExpression("missing argument to repetition operator")
        self._at += 1
        if c == "(":
            return self._group()
        if c == "[":
            return self._class()
        if c == ".":
            return Node("class", mask=ALL if self._flags.dot_all else ALL & ~_mask("\n"))
        if c == "^":
            return Node("begin")
        if c == "$":
            return Node("end")
        if c == "\\":
            return self._escape()
        return self._literal(c)

    def _is_repetition(self) -> bool:
        before = self._at
        found = self._repetition() is not None
        self._at = before
        return found

    def _literal(self, c: str) -> Node:
        mask = 1 << ord(c) if ord(c) < 128 else 0
        return Node("class", mask=_folded(mask) if self._flags.fold else mask)

    def _group(self) -> Node | None:
        outer = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._group_name()
            elif not self._set_flags():
                return None  # (?i): for the rest of the enclosing group
        node = self._alternatives()
        if not self._take(")"):
            raise InvalidExpression("missing closing )")
        self._flags = outer
        return node

    def _group_name(self) -> None:
        end = self._text.find(">", self._at)
        name = self._text[self._at : end] if end >= 0 else ""
        if not name or any(not (c == "_" or (c.isascii() and c.isalnum())) for c in name):
            raise InvalidExpression("invalid named capture")
        if name in self._names:
            raise InvalidExpression("duplicate capture group name")
        self._names.add(name)
        self._at = end + 1

    def _set_flags(self) -> bool:
        """The flags after `(?`; true when a group follows to which alone they apply."""
        on, given = True, False
        fold, many_lines, dot_all = self._flags
        while self._at < len(self._text):
            c = self._text[self._at]
            self._at += 1
            if c == "i":
                fold, given = on, True
            elif c == "m":
                many_lines, given = on, True
            elif c == "s":
                dot_all, given = on, True
            elif c == "U":
                given = True
            elif c == "-" and on:
                on, given = False, False
            elif c in ":)" and (on or given):
                self._flags = _Flags(fold, many_lines, dot_all)
                return c == ":"
            else:
                break
        raise InvalidExpression("invalid or unsupported Perl syntax")

    def _escape(self) -> Node:
        if self._at == len(self._text):
            raise InvalidExpression("trailing backslash at end of expression")
        c = self._text[self._at]
        anchors = {"A": "begin", "z": "end", "b": "word", "B": "not-word"}
        if c in anchors:
            self._at += 1
            return Node(anchors[c])
        if c == "C":  # any byte
            self._at += 1
            return Node("class", mask=ALL)
        mask = self._class_escape()
        if mask is None:
            return self._literal(self._character())
        return Node("class", mask=_folded(mask) if self._flags.fold else mask)

    def _class_escape(self) -> int | None:
        """\\d, \\pN and their like, after the backslash; None when a single character is meant."""
        c = self._text[self._at]
        if c.lower() in _PERL:
            self._at += 1
            mask = _PERL[c.lower()]
            return ALL & ~mask if c.isupper() else mask
        if c not in "pP":
            return None
        self._at += 1
        if self._take("{"):
            end = self._text.find("}", self._at)
            name = self._text[self._at : end] if end >= 0 else ""
            self._at = end + 1
        else:
            name = self._text[self._at : self._at + 1]
            self._at += 1
        inverted = (c == "P") != name.startswith("^")
        mask = _unicode_class(name.removeprefix("^"))
        return ALL & ~mask if inverted else mask

    def _character(self) -> str:
        """The character that an escape stands for, after the backslash."""
        c = self._text[self._at]
        self._at += 1
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c == "x":
            return self._hexadecimal()
        if c == "0" or (c in "1234567" and self._text[self._at : self._at + 1] in tuple("01234567")):
            digits = c
            while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._text[self._at]
                self._at += 1
            return chr(int(digits, 8))
        if ord(c) < 128 and not c.isalnum():
            return c
        raise InvalidExpression("invalid escape sequence")

    def _hexadecimal(self) -> str:
        if self._take("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end >= 0 else ""
            self._at = end + 1
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            if len(digits) != 2:
                raise InvalidExpression("invalid escape sequence")
        if not digits or any(d not in "0123456789abcdefABCDEF" for d in digits) or int(digits, 16) > 0x10FFFF:
            raise InvalidExpression("invalid escape sequence")
        return chr(int(digits, 16))

    def _class(self) -> Node:
        inverted = self._take("^")
        mask, first = 0, True
        while first or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise InvalidExpression("missing closing ]")
            first = False
            mask |= self._class_part()
        self._at += 1
        if self._flags.fold:
            mask = _folded(mask)
        return Node("class", mask=ALL & ~mask if inverted else mask)

    def _class_part(self) -> int:
        if self._text.startswith("[:", self._at) and (end := self._text.find(":]", self._at + 2)) >= 0:
            name = self._text[self._at + 2 : end]
            if name.removeprefix("^") not in _POSIX:
                raise InvalidExpression("invalid character class range")
            self._at = end + 2
            mask = _POSIX[name.removeprefix("^")]
            return ALL & ~mask if name.startswith("^") else mask
        if self._text.startswith("\\", self._at) and self._at + 1 < len(self._text):
            self._at += 1
            named = self._class_escape()
            if named is not None:
                return named
            self._at -= 1
        low = self._class_character()
        high = low
        if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
            if self._at + 1 >= len(self._text):
                raise InvalidExpression("missing closing ]")
            self._at += 1
            high = self._class_character()
        if high < low:
            raise InvalidExpression("invalid character class range")
        return _span(low, high)

    def _class_character(self) -> str:
        c = self._text[self._at]
        self._at += 1
        if c != "\\":
            return c
        if self._at >= len(self._text):
            raise InvalidExpression("trailing backslash at end of expression")
        return self._character()

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
