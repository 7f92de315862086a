"""What brokers ask of the active controller: FetchImage (1100), Forward (1101), AlterPartition (56),
AllocateProducerIds (67), BeginShutdown (1102) and ReportDisk (1103).

Only the active controller answers; others say NOT_CONTROLLER, and nothing was done. The sender names the
epoch of its registration: requests of an earlier run of that broker are refused with STALE_BROKER_EPOCH.
FetchImage is more patient, since a broker asks for the image before the controller has seen its registration.
"""

from __future__ import annotations

from typing import Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.handlers.forwarding import FORWARDED, ForwardedContext, ForwardingPorts
from ottla.broker.image_polls import ImagePolls
from ottla.cluster.disk_states import DiskReport
from ottla.cluster.image_wire import failed_from_wire, nothing_new, response_of
from ottla.protocol import codec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.begin_shutdown import BeginShutdownRequest, BeginShutdownResponse
from ottla.protocol.messages.fetch_image import FetchImageRequest, FetchImageResponse
from ottla.protocol.messages.forward import ForwardRequest, ForwardResponse
from ottla.protocol.messages.report_disk import ReportDiskRequest, ReportDiskResponse

MAX_WAIT_SECONDS = 10.0


class ControllerRequests(ForwardingPorts, Protocol):
    @property
    def image_polls(self) -> ImagePolls: ...


async def fetch_image(
    broker: ControllerRequests, request: FetchImageRequest, context: RequestContext
) -> FetchImageResponse:
    controller, polls = broker.controller, broker.image_polls
    try:
        controller.polled(request.broker_id, request.broker_epoch, request.applied)
    except ApiError as error:
        return FetchImageResponse(error_code=error.code)
    polls.applied(request.broker_id, request.applied)
    news = await polls.news(request.version, min(request.max_wait_ms / 1000, MAX_WAIT_SECONDS))
    if not controller.active:  # any more: the next controller says what is new
        return FetchImageResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if news is None:
        return nothing_new(request.version)
    return await broker.in_slices(response_of(news), context)


async def forward(
    broker: ControllerRequests, request: ForwardRequest, context: RequestContext
) -> ForwardResponse:
    forwarded = FORWARDED.get(request.request_key)
    try:
        broker.controller.check_broker(request.broker_id, request.broker_epoch)
        if forwarded is None:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        inner = ForwardedContext(request, context.connection)
        if not inner.api.min_version <= inner.version <= inner.api.max_version:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        decoding = codec.decode_in_slices(inner.api.request, inner.version, memoryview(request.request))
        try:
            asked = await broker.in_slices(decoding, context)
        except codec.Malformed as malformed:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(malformed)) from None
    except ApiError as error:
        return ForwardResponse(error_code=error.code)
    response = await forwarded.answer(broker, asked, inner)
    parts = await broker.in_slices(codec.encode_in_slices(response, inner.version), context)
    return ForwardResponse(image_version=broker.image.version, response=b"".join(parts))


async def allocate_producer_ids(
    broker: ControllerRequests, request: AllocateProducerIdsRequest, context: RequestContext
) -> AllocateProducerIdsResponse:
    try:
        broker.controller.check_broker(request.broker_id, request.broker_epoch)
        first, count = await broker.controller.allocate_producer_ids()
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count)


async def alter_partition(
    broker: ControllerRequests, request: AlterPartitionRequest, context: RequestContext
) -> AlterPartitionResponse:
    return await broker.controller.alter_partitions(request)


async def begin_shutdown(
    broker: ControllerRequests, request: BeginShutdownRequest, context: RequestContext
) -> BeginShutdownResponse:
    try:
        version, led = await broker.controller.begin_shutdown(request.broker_id, request.broker_epoch)
    except ApiError as error:
        return BeginShutdownResponse(error_code=error.code)
    return BeginShutdownResponse(image_version=version, remaining=led)


async def report_disk(
    broker: ControllerRequests, request: ReportDiskRequest, context: RequestContext
) -> ReportDiskResponse:
    report = DiskReport(request.is_impaired, failed_from_wire(request.failed))
    try:
        epoch = await broker.controller.take_disk_report(request.broker_id, request.broker_epoch, report)
    except ApiError as error:
        return ReportDiskResponse(error_code=error.code)
    return ReportDiskResponse(controller_epoch=epoch)
