"""An answer that comes later.

A handler that must wait returns a `Pending` and resolves it when it can answer. It is a future reduced to
what a connection needs: resolving it encodes and sends the answer in the same turn of the loop, which is
most of the difference between a fast and a slow long poll.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Pending:
    __slots__ = ("_deliver", "_encode", "on_cancel")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self.on_cancel = on_cancel
        self._encode: Callable[[Any], Any] | None = None
        self._deliver: Callable[[Any], None] | None = None

    def encode_by(self, encode: Callable[[Any], Any]) -> None:
        """Dispatch says how a response message becomes the parts of a frame."""
        self._encode = encode

    def deliver_to(self, deliver: Callable[[Any], None]) -> None:
        """The connection says where the frame goes."""
        self._deliver = deliver

    def resolve(self, response: Any) -> None:
        """Answer now. Nothing happens when the client has gone."""
        deliver, self._deliver = self._deliver, None
        if deliver is not None and self._encode is not None:
            deliver(self._encode(response))

    def cancel(self) -> None:
        """The client has gone: let the handler clean up, answer nobody."""
        self._deliver = None
        if self.on_cancel is not None:
            self.on_cancel()
