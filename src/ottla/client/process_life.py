"""Clients at the end of the process, and in a process that was forked.

librdkafka's threads do not live in a forked child: a client of the parent cannot be used there, not even
closed. In the child every such client refuses work with an error that says so, and is never freed. At the end
of the process, clients that were not closed are, so that what they have in their buffers is still sent.
"""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet

from ottla.client.configuration import LOG
from ottla.client.errors import ClientError


class Client(Protocol):
    def close(self) -> None: ...

    def abandon(self) -> None:
        """This process was forked from that of the client: refuse everything from now on, free nothing."""


_open: WeakSet[Client] = WeakSet()
_abandoned: list[Client] = []


def opened(client: Client) -> None:
    _open.add(client)


def closed(client: Client) -> None:
    _open.discard(client)


def _in_a_forked_child() -> None:
    for client in list(_open):
        _abandoned.append(client)
        client.abandon()
    _open.clear()


def _at_exit() -> None:
    for client in list(_open):
        LOG.warning("%r was not closed: use it in a `with` statement", client)
        try:
            client.close()
        except ClientError as error:
            LOG.error("%s", error)


os.register_at_fork(after_in_child=_in_a_forked_child)
atexit.register(_at_exit)
