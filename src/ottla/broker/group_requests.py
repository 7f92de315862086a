"""Asks the group coordinator on behalf of a request, and answers when all that was asked has been answered.

A command may be answered at once or much later (a JoinGroup waits for its group). At once is the common case
and costs no detour: the response is returned as from any plain handler.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.dispatch import RequestContext
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.coordinator import Command
from ottla.coordinator.group import Caller
from ottla.protocol.errors import ApiError

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


class Question(NamedTuple):
    group_id: str
    command: Command
    on_error: Callable[[ApiError], Any]
    """What an error becomes in the answer."""


def ask(
    broker: Broker, group_id: str, command: Command, on_error: Callable[[ApiError], Any]
) -> Any | Completion[Any]:
    """The answer to one question, or a `Completion` that will have it."""
    return ask_all(broker, [Question(group_id, command, on_error)], lambda answers: answers[0])


def ask_all(
    broker: Broker, questions: Iterable[Question], finish: Callable[[list[Any]], Any]
) -> Any | Completion[Any]:
    """What `finish` makes of all answers, in the order of the questions; or a `Completion` of it.

    What `finish` makes may also be steps (`request_scheduler`) that lead to the response.
    """
    collected = _Answers(finish)
    for question in questions:
        collected.ask(broker, question)
    return collected.outcome()


def ask_all_in_slices(
    broker: Broker, questions: Iterable[Question], finish: Callable[[list[Any]], Any]
) -> Steps[Any | Completion[Any]]:
    """As `ask_all`, with a pause after each question."""
    collected = _Answers(finish)
    for question in questions:
        collected.ask(broker, question)
        yield
    return collected.outcome()


class _Answers:
    """Answers to questions as they come in, in the order of the questions."""

    def __init__(self, finish: Callable[[list[Any]], Any]) -> None:
        self._finish = finish
        self._answers: list[Any] = []
        self._missing = 0
        self._pending: Completion[Any] | None = None

    def ask(self, broker: Broker, question: Question) -> None:
        self._missing += 1
        self._answers.append(None)
        answered = partial(self._take, len(self._answers) - 1, question.on_error)
        broker.groups.run(question.group_id, question.command, answered)

    def _take(self, index: int, on_error: Callable[[ApiError], Any], answer: Any) -> None:
        if isinstance(answer, ApiError):
            answer = on_error(answer)
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing and self._pending is not None:
            self._pending.resolve(self._finish(self._answers))

    def outcome(self) -> Any | Completion[Any]:
        """Asked when all questions have been put."""
        if not self._missing:
            return self._finish(self._answers)
        self._pending = Completion()
        return self._pending


def caller_of(context: RequestContext) -> Caller:
    """Who asks, as Kafka writes it down: addresses begin with a slash."""
    host = context.peer.rpartition(":")[0].strip("[]")
    return Caller(context.client_id or "", f"/{host}", context.version)


def new_member_id(broker: Broker, name: str) -> str:
    """An id that nobody else has, which begins with what its owner is called."""
    return f"{name}-{uuid.UUID(int=broker.rng.getrandbits(128), version=4)}"
