"""Checks of every version of every message, as one test for each message.

A test for each version takes longer to begin and to report than to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fuzz.random_messages import Message, messages, versions_of

Check = Callable[[Message, int], None]


def for_each_version(chosen: Iterable[Message] | None = None) -> Callable[[Check], Callable[[Message], None]]:
    """Make a test for each of the messages of the check of one version. A failure names the version."""

    def decorate(check: Check) -> Callable[[Message], None]:
        def test(cls: Message) -> None:
            for version in versions_of(cls):
                try:
                    check(cls, version)
                except BaseException as failure:
                    failure.add_note(f"This was version {version} of {cls.__name__}.")
                    raise

        test.__name__ = check.__name__
        return for_each_message(chosen)(test)

    return decorate


def for_each_message(chosen: Iterable[Message] | None = None) -> pytest.MarkDecorator:
    """A test with the argument `cls` for each of the messages."""
    chosen = messages() if chosen is None else chosen
    return pytest.mark.parametrize("cls", chosen, ids=lambda cls: cls.__name__)
