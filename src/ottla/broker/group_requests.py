"""How handlers run commands on the group coordinator, and make a response of their outcomes.

A command may be answered at once or much later (a JoinGroup waits for its group). At once is the common case
and costs no detour: the response is returned as from any plain handler. Later, it is a `Completion`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ottla.broker.dispatch import RequestContext
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.group import Caller
from ottla.coordinator.group_coordinator import Command, GroupCoordinator
from ottla.coordinator.runtime.shard import TransactionalProducer
from ottla.protocol.errors import ApiError

T = TypeVar("T")
R = TypeVar("R")


class GroupCommand(NamedTuple):
    group_id: str
    command: Command
    refused: Callable[[ApiError], Any]
    """What an error becomes in the response."""
    producer: TransactionalProducer | None = None
    """In whose transaction it is."""


def run(
    groups: GroupCoordinator, group_id: str, command: Command, refused: Callable[[ApiError], R]
) -> R | Completion[R]:
    """The response of one command."""
    return responded(groups.run(group_id, command), lambda response: response, refused)


def responded(
    outcome: Completion[T], finish: Callable[[T], R], refused: Callable[[ApiError], R]
) -> R | Completion[R]:
    """What `finish` makes of the outcome of a command, or `refused` of its error. At once if it is known."""

    def recover(error: Exception) -> R:
        if isinstance(error, ApiError):
            return refused(error)
        raise error

    if outcome.is_open:
        return outcome.map(finish, recover)
    known: list[T | Exception] = []
    outcome.then(known.append, known.append)
    (result,) = known
    return recover(result) if isinstance(result, Exception) else finish(result)


def run_all(
    groups: GroupCoordinator, commands: Iterable[GroupCommand], finish: Callable[[list[Any]], Any]
) -> Steps[Any | Completion[Any]]:
    """What `finish` makes of the responses of all commands, in their order.

    There is a pause after each command. What `finish` makes may also be steps that lead to the response.
    """
    outcomes = ((groups.run(each.group_id, each.command, each.producer), each.refused) for each in commands)
    return collected(outcomes, finish)


def collected(
    outcomes: Iterable[tuple[Completion[Any], Callable[[ApiError], Any]]],
    finish: Callable[[list[Any]], Any],
) -> Steps[Any | Completion[Any]]:
    """As `run_all`, for commands that are run while `outcomes` is iterated."""
    responses = _Responses(finish)
    for outcome, refused in outcomes:
        responses.expect(outcome, refused)
        yield
    return responses.all()


class _Responses:
    """The responses of several commands as they come in."""

    def __init__(self, finish: Callable[[list[Any]], Any]) -> None:
        self._finish = finish
        self._responses: list[Any] = []
        self._missing = 0
        self._completion: Completion[Any] | None = None

    def expect(self, outcome: Completion[Any], refused: Callable[[ApiError], Any]) -> None:
        self._missing += 1
        index = len(self._responses)
        self._responses.append(None)
        outcome.then(partial(self._take, index), partial(self._failed, index, refused))

    def _failed(self, index: int, refused: Callable[[ApiError], Any], error: Exception) -> None:
        if isinstance(error, ApiError):
            self._take(index, refused(error))
        elif self._completion is not None:
            self._completion.fail(error)
        else:
            raise error

    def _take(self, index: int, response: Any) -> None:
        self._responses[index] = response
        self._missing -= 1
        if not self._missing and self._completion is not None:
            self._completion.resolve(self._finish(self._responses))

    def all(self) -> Any | Completion[Any]:
        """Called when all commands have been run."""
        if not self._missing:
            return self._finish(self._responses)
        self._completion = Completion()
        return self._completion


def caller_of(context: RequestContext) -> Caller:
    """The client, as Kafka writes it to the log: addresses begin with a slash."""
    host = context.peer.rpartition(":")[0].strip("[]")
    return Caller(context.client_id or "", f"/{host}", context.version)


def new_member_id(rng: random.Random, name: str) -> str:
    """A unique id that begins with the name of the client."""
    return f"{name}-{uuid.UUID(int=rng.getrandbits(128), version=4)}"
