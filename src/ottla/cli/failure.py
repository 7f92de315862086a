"""How a command ends when it cannot do what it was asked.

A command raises; `main` catches, prints one or two plain lines on stderr (what is wrong, what to do next) and
exits with a code that scripts can distinguish. No traceback ever reaches a person for a fault that is theirs
or the network's; one that does is a bug of ours.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ottla.printable import escaped

if TYPE_CHECKING:
    from ottla.protocol_client.connection import BrokerUnreachable

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130

VERSIONS_ADVICE = "It may be older than what this command needs."


class Failure(Exception):
    """The command failed: `what` happened and, if there is something to do about it, `advice`."""

    def __init__(self, what: str, advice: str = "", *, code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice
        self.code = code


def usage(what: str, advice: str = "") -> Failure:
    """The command was given something it cannot work with."""
    return Failure(what, advice, code=USAGE)


def as_failure(error: Exception) -> Failure | None:
    """The failure a person should read for `error`; None for a bug of ours."""
    if isinstance(error, Failure):
        return error
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # the command line parser's own
        return _bad_command_line(error)
    if "ottla.protocol_client.connection" not in sys.modules:
        return None  # nothing spoke to a broker, so it is none of the errors below, whose modules cost time
    from ottla.protocol.errors import ApiError
    from ottla.protocol_client.connection import BrokerUnreachable, UnsupportedByBroker

    if isinstance(error, BrokerUnreachable):
        return unreachable(error)
    if isinstance(error, UnsupportedByBroker):
        return Failure(str(error), VERSIONS_ADVICE)
    if isinstance(error, ApiError):
        return Failure(f"{_sentence(error.message)} ({error.code.name})")
    return None


def unreachable(error: BrokerUnreachable) -> Failure:
    """What a person should read when there is no broker."""
    from ottla.protocol_client.connection import ConnectionLost

    what = "lost the broker at" if isinstance(error, ConnectionLost) else "cannot reach the broker at"
    return Failure(f"{what} {error.address}: {error.reason}", error.advice, code=UNREACHABLE)


def report(failure: Failure) -> None:
    """Print it: red on a terminal, plain elsewhere."""
    if failure.what.startswith("Usage:"):  # a group of commands without a command: its help says it all
        print(failure.what, file=sys.stderr)
        return
    mark = "error:"
    if sys.stderr.isatty():
        mark = f"\x1b[1;31m{mark}\x1b[0m"
    print(mark, escaped(failure.what, keep="\n"), file=sys.stderr)
    if failure.advice:
        print("      ", escaped(failure.advice, keep="\n"), file=sys.stderr)


def _bad_command_line(error: Any) -> Failure:
    if type(error).__name__ == "NoArgsIsHelpError":
        return usage(error.format_message())
    path = error.ctx.command_path if error.ctx else "ottla"
    text = _sentence(error.format_message()).replace("Value error, ", "")
    return usage(text, f"`{path} --help` shows what it takes.")


def _sentence(text: str) -> str:
    """One line, lower-case start, no full stop: how it reads after `error:`."""
    flat = " ".join(text.split()).removesuffix(".")
    if flat[1:2].islower() or flat[1:2] == " ":
        flat = flat[:1].lower() + flat[1:]
    return flat
