"""Names that clients chose, as people read them: printable, on one line, and not endless."""

from __future__ import annotations

import pytest

from ottla.printable import LIMIT, listed, shown
from ottla.protocol.errors import MAX_MESSAGE, ApiError, ErrorCode


@pytest.mark.parametrize("text", ["", "orders", "漢字 😀", "a-b_c.d", "C:\\new"])
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("bell\x07 csi\x9b", "bell\\x07 csi\\x9b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("line\u2028line", "line\\u2028line"),
        ("\ud800", "\\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_a_long_text_is_truncated_with_its_length() -> None:
    assert shown("x" * 32_767) == "x" * LIMIT + "... (32,767 characters)"
    assert shown("x" * LIMIT) == "x" * LIMIT


def test_escapes_do_not_make_a_text_longer_than_allowed() -> None:
    assert len(shown("\x1b" * LIMIT)) < LIMIT + 40
    assert len(shown("\x1b" * 32_767)) < LIMIT + 40


def test_a_list_of_names_shows_the_first_ones_and_counts_the_rest() -> None:
    assert listed(["a", "b\n"]) == "a, b\\n"
    assert listed(str(n) for n in range(5_000)) == "0, 1, 2, 3, 4 and 4,995 more"


def test_the_message_of_an_error_is_one_line_of_bounded_length() -> None:
    message = ApiError(ErrorCode.INVALID_REQUEST, "there is no group \x1b[2J\n" + "g" * 32_767).message
    assert message.isprintable()
    assert len(message) < MAX_MESSAGE + 40
