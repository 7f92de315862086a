"""The way to the active controller, which is this broker or another one: requests that only it can answer.

While this broker is the controller nothing goes over a socket. A request is tried again while the controller
is not known or not reached, is not the controller any more, or does not know this broker's registration yet.
When it cannot be known whether a request was carried out, only one that may be repeated is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ottla.broker.controller_location import ControllerLocation
from ottla.broker.image_polls import ImagePolls
from ottla.broker.peers import CONTROL, FORWARDS, Peers
from ottla.broker.producer_id_block import ProducerIdBlock
from ottla.cluster.controller import Controller, Outcome
from ottla.cluster.disk_states import DiskReport
from ottla.cluster.image_wire import failed_to_wire
from ottla.cluster.topic_rules import NewTopic
from ottla.peer.client import PeerClient, PeerUnreachable, UnsupportedByPeer
from ottla.protocol import codec
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.begin_shutdown import BeginShutdownRequest, BeginShutdownResponse
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.forward import ForwardRequest
from ottla.protocol.messages.report_disk import ReportDiskRequest, ReportDiskResponse
from ottla.protocol.schema import Request

logger = logging.getLogger("ottla.broker")

LEADERS_SECONDS = 5.0
"""So long a change of topics waits until the leaders of new partitions know of it."""
_REQUEST_SECONDS = 20.0
"""So long requests to the controller are tried; clients give up after 30 s."""
_CALL_SECONDS = 10.0
"""The longest time for an answer that needs no waiting."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

T = TypeVar("T")
_TRY_AGAIN = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_NOT_AVAILABLE}
)
"""Nothing was done, and another attempt may find the controller."""


class ControllerChannel:
    def __init__(
        self,
        node_id: int,
        controller: Controller,
        location: ControllerLocation,
        peers: Peers,
        polls: ImagePolls,
        *,
        broker_epoch: Callable[[], int],
        caught_up: Callable[[int], Awaitable[None]],
    ) -> None:
        """`broker_epoch` is that of the present registration; `caught_up` returns when this broker acts on
        the image of a version."""
        self._node_id = node_id
        self._controller = controller
        self._location = location
        self._peers = peers
        self._polls = polls
        self._broker_epoch = broker_epoch
        self._caught_up = caught_up
        self._closed = False
        self._producer_ids = ProducerIdBlock(self._allocate_producer_ids)

    def close(self) -> None:
        """End all requests that wait for a controller: the broker stops."""
        self._closed = True
        self._location.wake()

    async def forward(
        self,
        request: Request,
        version: int,
        *,
        client_id: str | None,
        client_address: str,
        here: Callable[[], Awaitable[T]],
        timeout: float = _REQUEST_SECONDS,
    ) -> T:
        """The controller's response to a client's request; `here` gives it if this broker is the controller.

        It comes when this broker acts on the image that shows what was done. ApiError if there is none.
        """

        async def remote(client: PeerClient, left: float) -> T:
            response: T = (await self._forwarded(request, version, client_id, client_address, client, left))[
                0
            ]
            return response

        return await self._at_controller(here, remote, FORWARDS, timeout)

    async def _forwarded(
        self,
        request: Request,
        version: int,
        client_id: str | None,
        client_address: str,
        client: PeerClient,
        timeout: float,
    ) -> tuple[Any, int]:
        """The response of another broker, and the version of the image that shows what it did."""
        envelope = ForwardRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            request_key=request.api_key,
            request_version=version,
            client_id=client_id,
            client_address=client_address,
            request=b"".join(codec.encode(request, version)),
        )
        answer = await client.call(envelope, timeout=timeout)
        _check(answer.error_code)
        response = codec.decode(APIS[request.api_key].response, version, memoryview(answer.response))
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADERS_SECONDS):
                await self._caught_up(answer.image_version)
        return response, answer.image_version

    async def create_topics(
        self, topics: Sequence[NewTopic], *, timeout: float = _REQUEST_SECONDS, search: float | None = None
    ) -> Outcome[str]:
        """Create topics for this broker itself. The results are their names.

        NOT_CONTROLLER when no controller was found in `search` seconds, of `timeout` in all.
        """

        async def local() -> Outcome[str]:
            outcome = await self._controller.create_topics(topics)
            planned = [each for each in outcome.results if not isinstance(each, ApiError)]
            if not planned and any(map(_is_deposed, outcome.results)):
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            leaders = {state.leader for plan in planned for state in plan.topic.partitions}
            await self.leaders_follow(outcome.version, leaders)
            named = [e if isinstance(e, ApiError) else e.topic.name for e in outcome.results]
            return Outcome(outcome.version, named)

        async def remote(client: PeerClient, left: float) -> Outcome[str]:
            request = CreateTopicsRequest(topics=[_creatable(topic) for topic in topics])
            newest, name = APIS[request.api_key].max_version, f"broker-{self._node_id}"
            response, version = await self._forwarded(request, newest, name, "", client, left)
            said = {each.name: each for each in response.topics}
            results: list[str | ApiError] = []
            for topic in topics:
                if topic.name not in said:
                    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer about topic {topic.name}")
                code, message = said[topic.name].error_code, said[topic.name].error_message
                results.append(ApiError(error_of(code), message) if code else topic.name)
            return Outcome(version, results)

        return await self._at_controller(local, remote, FORWARDS, timeout, search=search)

    async def leaders_follow(
        self, version: int, leaders: Collection[int], timeout: float = LEADERS_SECONDS
    ) -> None:
        """At the controller: wait until the leaders of new partitions know of them. A short time only."""
        brokers = self._controller.image.brokers
        others = [
            each for each in leaders if each != self._node_id and each in brokers and not brokers[each].fenced
        ]
        if others and not await self._polls.reached(version, others, timeout):
            logger.info("not all of brokers %s have taken over image %d yet", sorted(others), version)

    async def next_producer_id(self) -> int:
        """A producer id that no producer ever had."""
        return await self._producer_ids.next()

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        async def remote(client: PeerClient, left: float) -> tuple[int, int]:
            request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
            answer = await client.call(request, timeout=min(left, _CALL_SECONDS))
            _check(answer.error_code)
            return answer.producer_id_start, answer.producer_id_len

        return await self._at_controller(
            self._controller.allocate_producer_ids, remote, CONTROL, _REQUEST_SECONDS, repeatable=True
        )

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Propose in-sync sets. May be repeated, since each names the partition epoch that it changes."""

        async def local() -> AlterPartitionResponse:
            return await self._controller.alter_partitions(request)

        async def remote(client: PeerClient, left: float) -> AlterPartitionResponse:
            response: AlterPartitionResponse = await client.call(request, timeout=left)
            return response

        return await self._at_controller(local, remote, CONTROL, _CALL_SECONDS, repeatable=True)

    async def begin_shutdown(self) -> BeginShutdownResponse:
        """Have the leaderships of this broker moved away. It comes when this broker acts on that."""

        async def local() -> BeginShutdownResponse:
            version, remaining = await self._controller.begin_shutdown(self._node_id, self._broker_epoch())
            return BeginShutdownResponse(image_version=version, remaining=remaining)

        async def remote(client: PeerClient, left: float) -> BeginShutdownResponse:
            request = BeginShutdownRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
            answer: BeginShutdownResponse = await client.call(request, timeout=left)
            _check(answer.error_code)
            return answer

        answer = await self._at_controller(local, remote, CONTROL, _CALL_SECONDS, repeatable=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADERS_SECONDS):
                await self._caught_up(answer.image_version)
        return answer

    async def report_disk(self, report: DiskReport) -> tuple[int, int]:
        """Tell the controller how this broker's disk is. ApiError when it may not have heard it.

        The controller epoch and the broker epoch in which it was heard.
        """

        async def local() -> tuple[int, int]:
            epoch = self._broker_epoch()
            return await self._controller.take_disk_report(self._node_id, epoch, report), epoch

        async def remote(client: PeerClient, left: float) -> tuple[int, int]:
            request = ReportDiskRequest(
                broker_id=self._node_id,
                broker_epoch=self._broker_epoch(),
                is_impaired=report.impaired,
                failed=failed_to_wire(report.failed),
            )
            answer: ReportDiskResponse = await client.call(request, timeout=left)
            _check(answer.error_code)
            return answer.controller_epoch, request.broker_epoch

        return await self._at_controller(local, remote, CONTROL, _CALL_SECONDS, repeatable=True)

    async def _at_controller(
        self,
        local: Callable[[], Awaitable[T]],
        remote: Callable[[PeerClient, float], Awaitable[T]],
        use: str,
        timeout: float,
        *,
        search: float | None = None,
        repeatable: bool = False,
    ) -> T:
        """What the controller answers: this broker (`local`) or another (`remote`, in the seconds left).

        NOT_CONTROLLER if none was reached in time, or in `search` seconds; REQUEST_TIMED_OUT if it may have
        carried the request out.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        search_end = deadline if search is None else loop.time() + search
        pause = _FIRST_PAUSE
        while not self._closed:
            moved, controller = self._location.moved, self._location.remote
            try:
                if self._controller.active:
                    return await local()
                if controller is not None:
                    return await remote(self._peers.client(controller, use), deadline - loop.time())
            except ApiError as error:
                if error.code not in _TRY_AGAIN:
                    raise
            except PeerUnreachable as error:
                if error.maybe_done and not repeatable:
                    raise ApiError(
                        ErrorCode.REQUEST_TIMED_OUT, f"no answer of the controller: {error}"
                    ) from None
            except (UnsupportedByPeer, codec.Malformed) as error:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(loop.time() + pause, search_end)):
                    await moved.wait()
            if loop.time() >= search_end:
                break
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise ApiError(ErrorCode.NOT_CONTROLLER)


def _check(code: int) -> None:
    if code:
        raise ApiError(error_of(code))


def _is_deposed(result: object) -> bool:
    return isinstance(result, ApiError) and result.code is ErrorCode.NOT_CONTROLLER


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in topic.assignments
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )
