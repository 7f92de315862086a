"""An answer that comes later.

A handler that must wait returns a `Pending` and resolves it when it can answer. It is a future reduced to
what a connection needs: resolving it encodes and sends the answer in the same turn of the loop, which is
most of the difference between a fast and a slow long poll. An answer too large for that is encoded in slices;
then the encoding is a `Pending` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Pending:
    __slots__ = ("_deliver", "_encode", "_encoding", "frame_in_use", "on_cancel", "on_frame_free")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self.on_cancel = on_cancel
        self.frame_in_use = False
        """True while the request is still being read from its frame: whoever lent the memory waits."""
        self.on_frame_free: Callable[[], None] | None = None
        self._encode: Callable[[Any], Any] | None = None
        self._deliver: Callable[[Any], None] | None = None
        self._encoding: Pending | None = None

    def encode_by(self, encode: Callable[[Any], Any]) -> None:
        """Dispatch says how a response message becomes the parts of a frame, or a `Pending` of them."""
        self._encode = encode

    def deliver_to(self, deliver: Callable[[Any], None]) -> None:
        """The connection says where the frame goes."""
        self._deliver = deliver

    def resolve(self, response: Any) -> None:
        """Answer now. Nothing happens when the client has gone."""
        deliver, self._deliver = self._deliver, None
        if deliver is not None and self._encode is not None:
            encoded = self._encode(response)
            if isinstance(encoded, Pending):
                self._encoding = encoded
                encoded.deliver_to(deliver)
            else:
                deliver(encoded)

    def cancel(self) -> None:
        """The client has gone: let the handler clean up, answer nobody."""
        self._deliver = None
        if self._encoding is not None:
            self._encoding.cancel()
        if self.on_cancel is not None:
            self.on_cancel()

    def free_frame(self) -> None:
        """The request has been read, or will not be: its frame may be used for something else."""
        self.frame_in_use = False
        if self.on_frame_free is not None:
            free, self.on_frame_free = self.on_frame_free, None
            free()
