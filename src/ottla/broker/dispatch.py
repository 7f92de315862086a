"""From a frame to the handler that answers it, and from the answer to a frame.

A frame is decoded by the version its header names, handed to the one function that serves its API, and what
comes back is encoded under the same version. Handlers are plain functions that return a message; those that
must wait return a `Completion`. Those that may have much to do are generators, which yield wherever they may
be interrupted and return the message. On cold paths a handler may be a coroutine, which becomes a completion
here.

What cannot be answered closes the connection with a line in the log that names the client: bytes that are no
request, an API or version we do not speak, and a defect of ours. The last one is closed rather than answered
with UNKNOWN_SERVER_ERROR on purpose: an idempotent producer takes that error for final and gives its batch a
new sequence, which makes a duplicate; a lost connection makes it ask again.

Produce and Fetch are answered as they come. All else goes through `request_scheduler`, where requests queue
under load, and where large requests and answers are worked on in slices, decoding and encoding included.
A Fetch with a large frame goes there too, and a Produce that names many partitions. Many bytes alone do not
make a Produce slow, since its records are not copied. There it keeps its frame until it is done, and it is
finished even if its client has gone: with acks=0 a client may send its records and leave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import GeneratorType
from typing import Any, Generic, TypeAlias, TypeVar

from ottla.broker.answer_sender import Parts
from ottla.broker.broker_metrics import BrokerMetrics
from ottla.broker.buffers import Lease
from ottla.broker.connection import ITERATION_SECONDS, Answer, Connection, Refused
from ottla.broker.request_scheduler import LARGEST, SMALL, RequestScheduler, Steps
from ottla.broker.watchdog import STALL_SECONDS, Watchdog
from ottla.completion import Completion, run_coroutine
from ottla.log_lines import ClientLog
from ottla.protocol import codec
from ottla.protocol.apis import APIS, Api
from ottla.protocol.frames import RequestHeader, UnsupportedVersion, parse_request_header, response_frame

logger = logging.getLogger("ottla.dispatch")

P = TypeVar("P")
"""What handlers may use of the broker; see `ports`."""
Handler: TypeAlias = Callable[[P, Any, "RequestContext"], Any]
"""(broker, request, context) -> response, or a Completion, `Steps` or a coroutine that lead to one; None
where no answer is due."""

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
_SHORT_ANSWERS = (PRODUCE, FETCH)
"""A small request of these has a short answer, unless its handler answers in steps."""


class RequestContext:
    """What asks, under which version, in how many bytes; and the owner of these bytes.

    Decoded records refer to the frame, which is there during the handler's call. A handler that needs it for
    longer calls `keep_frame`, and `release_frame` when it needs it no longer.
    """

    __slots__ = ("_memory", "api", "arrived", "connection", "header", "size")

    def __init__(self, api: Api, header: RequestHeader, connection: Connection, size: int = 0) -> None:
        self.api = api
        self.header = header
        self.connection = connection
        self.size = size
        self.arrived = connection.last_active
        self._memory: Lease | None = None

    def keep_frame(self) -> None:
        """Let the frame outlive the handler's call. Nothing is copied."""
        if self._memory is None:
            self._memory = self.connection.take_frame()

    def release_frame(self) -> None:
        """Nothing reads the frame any more. Nothing happens when it was not kept, or was released before."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release()

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        return self.header.client_id

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def address(self) -> str:
        return self.connection.address

    @property
    def listener(self) -> str:
        """The name of the listener that the request came in by."""
        return self.connection.listener

    @property
    def from_broker(self) -> bool:
        """It came in by the listener for other brokers: a client cannot send it."""
        return self.connection.from_broker

    @property
    def forwarded_by(self) -> int | None:
        """The broker that the client sent the request to, if that was another one."""
        return None

    def describe(self) -> str:
        return f"{self.api.name} v{self.version}, {self.size} bytes, of {self.connection!r}"

    def frame(self, response: Any) -> Parts:
        return self._framed(codec.encode(response, self.header.api_version))

    def frame_in_slices(self, response: Any) -> Steps[Parts]:
        return self._framed((yield from codec.encode_in_slices(response, self.header.api_version)))

    def _framed(self, parts: list[Any]) -> Parts:
        return response_frame(self.api, self.header.api_version, self.header.correlation_id, parts)


class Dispatcher(Generic[P]):
    def __init__(
        self,
        broker: P,
        handlers: Mapping[int, Handler[P]],
        broker_handlers: Mapping[int, Handler[P]],
        scheduler: RequestScheduler,
        watchdog: Watchdog,
        metrics: BrokerMetrics,
        client_log: Callable[[], ClientLog],
    ) -> None:
        """`broker_handlers` are for requests by the listener of brokers only, beside `handlers`."""
        self._broker = broker
        self._handlers = handlers
        self._broker_handlers = broker_handlers
        self._scheduler = scheduler
        self._watchdog = watchdog
        self._now = watchdog.now
        self._requests = metrics.requests
        self._client_log = client_log

    def __call__(self, connection: Connection, frame: memoryview) -> Answer:
        try:
            header = parse_request_header(frame)
        except UnsupportedVersion as unsupported:
            return self._too_new(unsupported, connection)
        except codec.Malformed as malformed:
            raise Refused(f"no request: {malformed}") from None
        connection.client_id = header.client_id
        api_key, size = header.api_key, len(frame)
        handler = self._handlers.get(api_key)
        if handler is None:
            handler = self._broker_handlers.get(api_key)
            if handler is None:
                raise Refused(f"API {api_key} is not served here")
            if not connection.from_broker:
                raise Refused(f"{APIS[api_key].name} is served on the listener for other brokers only")
        context = RequestContext(APIS[api_key], header, connection, size)
        try:
            if api_key == PRODUCE or (api_key == FETCH and size <= LARGEST):
                try:
                    return self._at_once(handler, context, frame)
                except codec.ManyObjects:
                    return self._produce_in_slices(handler, context, frame)
                finally:
                    seconds = self._now() - connection.last_active
                    if seconds > ITERATION_SECONDS:
                        connection.yield_loop()
                        if seconds > STALL_SECONDS:
                            self._watchdog.request_took(seconds, context)
            kept = size > LARGEST
            if kept:
                context.keep_frame()
            return self._scheduler.take(partial(self._steps, handler, context), frame, context, kept=kept)
        except BaseException:
            context.release_frame()
            raise

    def _at_once(self, handler: Handler[P], context: RequestContext, frame: memoryview) -> Answer:
        api, header = context.api, context.header
        decode = codec.decode_few if header.api_key == PRODUCE else codec.decode
        try:
            request = decode(api.request, header.api_version, frame, header.body_start)
        except codec.Malformed as malformed:
            raise Refused(f"malformed {api.name} v{header.api_version}: {malformed}") from None
        try:
            response = handler(self._broker, request, context)
            if isinstance(response, api.response):
                return self._answered(context, context.frame(response))
        except Refused:
            raise
        except Exception as error:
            raise self._defect(error, context) from error
        if isinstance(response, GeneratorType):
            is_produce = header.api_key == PRODUCE
            return self._scheduler.run(self._rest(response, context), context, to_the_end=is_produce)
        return self._later(response, context)

    def _produce_in_slices(self, handler: Handler[P], context: RequestContext, frame: memoryview) -> Answer:
        """Decode a Produce with pauses, then let it be handled. Its records stay in the frame meanwhile."""
        context.keep_frame()
        work = partial(self._steps, handler, context, has_records=True)
        return self._scheduler.take(work, frame, context, kept=True, to_the_end=True)

    def _steps(
        self, handler: Handler[P], context: RequestContext, frame: memoryview, *, has_records: bool = False
    ) -> Steps[Answer]:
        """As `_at_once`, with pauses. The handler of a request that `has_records` releases its frame."""
        api, header = context.api, context.header
        version, start = header.api_version, header.body_start
        try:
            if has_records or len(frame) > LARGEST:
                request = yield from codec.decode_in_slices(api.request, version, frame, start)
            else:
                request = codec.decode(api.request, version, frame, start)
        except codec.Malformed as malformed:
            raise Refused(f"malformed {api.name} v{version}: {malformed}") from None
        del frame
        if not has_records:
            context.release_frame()
        try:
            response = handler(self._broker, request, context)
        except Refused:
            raise
        except Exception as error:
            raise self._defect(error, context) from error
        del request
        return (yield from self._rest(response, context))

    def _rest(self, response: Any, context: RequestContext) -> Steps[Answer]:
        """From what a handler returned to the answer."""
        try:
            while isinstance(response, GeneratorType):
                response = yield from response
            if isinstance(response, context.api.response):
                return self._answered(context, (yield from context.frame_in_slices(response)))
        except Refused:
            raise
        except Exception as error:
            raise self._defect(error, context) from error
        return self._later(response, context)

    def _later(self, response: Any, context: RequestContext) -> Completion[Parts | None] | None:
        """The frame of a response that comes later; None where no answer is due."""
        if response is None:
            self._requests[context.api.key].answered(self._now() - context.arrived, context.size, 0)
            return None
        completion = response if isinstance(response, Completion) else run_coroutine(response)
        return completion.map(partial(self._encode, context), partial(self._refuse, context))

    def _too_new(self, unsupported: UnsupportedVersion, connection: Connection) -> Parts:
        """KIP-511: a client too new for us learns what we speak from an answer in version 0."""
        header = unsupported.header
        connection.client_id = header.client_id
        if header.api_key != API_VERSIONS:
            raise Refused(str(unsupported))
        context = RequestContext(APIS[API_VERSIONS], header._replace(api_version=0), connection)
        return context.frame(self._handlers[API_VERSIONS](self._broker, None, context))

    def _encode(self, context: RequestContext, response: Any) -> Answer:
        """The frame of a response that came later."""
        if response is None:
            return None
        is_short = context.size <= SMALL and context.header.api_key in _SHORT_ANSWERS
        if not is_short or isinstance(response, GeneratorType):
            return self._scheduler.run(self._encoded(context, response), context)
        try:
            return self._answered(context, context.frame(response))
        except Exception as error:
            raise self._defect(error, context) from error

    def _encoded(self, context: RequestContext, response: Any) -> Steps[Parts]:
        try:
            if isinstance(response, GeneratorType):
                response = yield from response
            return self._answered(context, (yield from context.frame_in_slices(response)))
        except Refused:
            raise
        except Exception as error:
            raise self._defect(error, context) from error

    def _answered(self, context: RequestContext, frame: Parts) -> Parts:
        head = frame[0]
        assert isinstance(head, bytes)
        size = 4 + int.from_bytes(head[:4], "big")  # as the frame itself says
        self._requests[context.api.key].answered(self._now() - context.arrived, context.size, size)
        return frame

    def _refuse(self, context: RequestContext, error: Exception) -> Answer:
        """A response that should have come later failed."""
        if isinstance(error, Refused):
            raise error
        raise self._defect(error, context) from error

    def _defect(self, error: Exception, context: RequestContext) -> Refused:
        self._client_log().log(
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
