"""ApiVersions (18): what we speak. The first thing every client asks.

Only what has a handler is advertised, in the versions of the declarations. Produce is advertised from version
0 although 0 to 2 are refused: old librdkafka switches its compression off when it does not see them. The
answer's header is always version 0, so that a client of any age can read it.
"""

from __future__ import annotations

import re
from typing import Protocol

from ottla.broker.dispatch import API_VERSIONS, RequestContext
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Advertising(Protocol):
    @property
    def advertised(self) -> ApiVersionsResponse:
        """Every API that has a handler, with its versions."""
        ...

    @property
    def advertised_to_brokers(self) -> ApiVersionsResponse:
        """The same for other brokers, with what they alone may ask."""
        ...


def api_versions(
    broker: Advertising, request: ApiVersionsRequest | None, context: RequestContext
) -> ApiVersionsResponse:
    """`request` is None when the client asked in a version that we do not know."""
    if request is None:
        own = APIS[API_VERSIONS]
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(api_key=own.key, min_version=own.advertised_min, max_version=own.max_version)
            ],
        )
    if context.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return broker.advertised_to_brokers if context.from_broker else broker.advertised
