"""From a frame to the handler that answers it, and from the answer to a frame.

A frame is decoded by the version its header names, handed to the one function that serves its API, and what
comes back is encoded under the same version. Handlers are plain functions that return a message; those that
must wait return a `Pending`, and those on cold paths may be coroutines.

What cannot be answered closes the connection with a line in the log that names the client: bytes that are no
request, an API or version we do not speak, and a defect of ours. The last one is closed rather than answered
with UNKNOWN_SERVER_ERROR on purpose: an idempotent producer takes that error for final and gives its batch a
new sequence, which makes a duplicate; a lost connection makes it ask again.

Produce and Fetch are answered as they come. All else takes the slow lane (`lane`), where it waits in a crowd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.connection import Connection, Parts, Refused
from ottla.broker.lane import Lane
from ottla.broker.pending import Pending
from ottla.protocol import codec
from ottla.protocol.apis import APIS, Api
from ottla.protocol.frames import RequestHeader, UnsupportedVersion, parse_request_header, response_frame

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

logger = logging.getLogger("ottla.dispatch")

Handler = Callable[["Broker", Any, "RequestContext"], Any]
"""(broker, request, context) -> response, a Pending or a coroutine of one; None where no answer is due."""

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18


class RequestContext:
    """Who asks, and under which version."""

    __slots__ = ("api", "connection", "header")

    def __init__(self, api: Api, header: RequestHeader, connection: Connection) -> None:
        self.api = api
        self.header = header
        self.connection = connection

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        return self.header.client_id

    @property
    def peer(self) -> str:
        return self.connection.peer

    def frame(self, response: Any) -> Parts:
        return response_frame(
            self.api,
            self.header.api_version,
            self.header.correlation_id,
            codec.encode(response, self.header.api_version),
        )


class Dispatcher:
    def __init__(self, broker: Broker, handlers: Mapping[int, Handler], lane: Lane) -> None:
        self._broker = broker
        self._handlers = handlers
        self._lane = lane
        self._tasks: set[asyncio.Task[Any]] = set()

    def __call__(self, connection: Connection, frame: memoryview) -> Parts | Pending | None:
        try:
            header = parse_request_header(frame)
        except UnsupportedVersion as unsupported:
            return self._too_new(unsupported, connection)
        except codec.Malformed as malformed:
            raise Refused(f"no request: {malformed}") from None
        connection.client_id = header.client_id
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise Refused(f"API {header.api_key} is not served here")
        context = RequestContext(APIS[header.api_key], header, connection)
        if header.api_key == PRODUCE or header.api_key == FETCH:
            return self._answer(handler, context, frame)
        return self._lane.take(partial(self._answer, handler, context), frame)

    def _answer(self, handler: Handler, context: RequestContext, frame: memoryview) -> Parts | Pending | None:
        api, header = context.api, context.header
        try:
            request = codec.decode(api.request, header.api_version, frame, header.body_start)
        except codec.Malformed as malformed:
            raise Refused(f"malformed {api.name} v{header.api_version}: {malformed}") from None
        try:
            response = handler(self._broker, request, context)
            if isinstance(response, api.response):
                return context.frame(response)
        except Refused:
            raise
        except Exception as error:
            raise self._defect(error, context) from error
        if response is None:
            return None
        pending = response if isinstance(response, Pending) else self._run(response)
        pending.encode_by(partial(self._encode, context))
        return pending

    def _too_new(self, unsupported: UnsupportedVersion, connection: Connection) -> Parts:
        """KIP-511: a client too new for us learns what we speak from an answer in version 0."""
        header = unsupported.header
        connection.client_id = header.client_id
        if header.api_key != API_VERSIONS:
            raise Refused(str(unsupported))
        context = RequestContext(APIS[API_VERSIONS], header._replace(api_version=0), connection)
        return context.frame(self._handlers[API_VERSIONS](self._broker, None, context))

    def _run(self, response: Coroutine[Any, Any, Any]) -> Pending:
        """Let a coroutine answer. It runs to its end even if the client goes: what it began, it finishes.

        Its answer may be one that comes later still, which is given up when the client has gone.
        """
        gone = asyncio.Event()
        pending = Pending(gone.set)
        task = asyncio.get_running_loop().create_task(response)
        self._tasks.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            answer = task.exception() or task.result()
            if not isinstance(answer, Pending):
                pending.resolve(answer)
            elif gone.is_set():
                answer.cancel()
            else:
                answer.encode_by(lambda message: message)
                answer.deliver_to(pending.resolve)
                pending.on_cancel = answer.cancel

        task.add_done_callback(done)
        return pending

    def _encode(self, context: RequestContext, response: Any) -> Parts | Refused | None:
        """The frame of an answer that came later, or why the connection has to be closed instead."""
        if response is None or isinstance(response, Refused):
            return response
        try:
            if isinstance(response, BaseException):
                raise response
            return context.frame(response)
        except Exception as error:  # noqa: BLE001 - as above, for those who waited
            return self._defect(error, context)

    def _defect(self, error: Exception, context: RequestContext) -> Refused:
        self._broker.client_log.log(
            logger,
            logging.ERROR,
            context.connection.address,
            "%s v%d of %r failed: %r",
            context.api.name,
            context.version,
            context.connection,
            error,
            error=error,
        )
        return Refused(f"an internal error while answering {context.api.name}")
