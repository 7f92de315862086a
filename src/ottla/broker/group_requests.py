"""Asks the group coordinator on behalf of a request, and answers when all that was asked has been answered.

A command may be answered at once or much later (a JoinGroup waits for its group). At once is the common case
and costs no detour: the response is returned as from any plain handler.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.dispatch import RequestContext
from ottla.broker.pending import Pending
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
) -> Any | Pending:
    """The answer to one question, or a `Pending` that will have it."""
    return ask_all(broker, [Question(group_id, command, on_error)], lambda answers: answers[0])


def ask_all(
    broker: Broker, questions: Sequence[Question], finish: Callable[[list[Any]], Any]
) -> Any | Pending:
    """What `finish` makes of all answers, in the order of the questions; or a `Pending` of it."""
    answers: list[Any] = [None] * len(questions)
    missing = len(questions)
    pending: Pending | None = None

    def answered(index: int, answer: Any) -> None:
        nonlocal missing
        answers[index] = questions[index].on_error(answer) if isinstance(answer, ApiError) else answer
        missing -= 1
        if not missing and pending is not None:
            pending.resolve(finish(answers))

    for index, question in enumerate(questions):
        broker.groups.run(question.group_id, question.command, partial(answered, index))
    if not missing:
        return finish(answers)
    pending = Pending()
    return pending


def caller_of(context: RequestContext) -> Caller:
    """Who asks, as Kafka writes it down: addresses begin with a slash."""
    host = context.peer.rpartition(":")[0].strip("[]")
    return Caller(context.client_id or "", f"/{host}", context.version)


def new_member_id(broker: Broker, name: str) -> str:
    """An id that nobody else has, which begins with what its owner is called."""
    return f"{name}-{uuid.UUID(int=broker.rng.getrandbits(128), version=4)}"
