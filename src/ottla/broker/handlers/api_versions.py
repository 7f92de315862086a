"""ApiVersions (18): what we speak. The first thing every client asks.

Only what has a handler is advertised, in the versions of the declarations. Produce is advertised from version
0 although 0 to 2 are refused: old librdkafka switches its compression off when it does not see them. The
answer's header is always version 0, so that a client of any age can read it.

Version notes. 3 brought the features of the cluster (`cluster/features.py`), 4 those that are supported from
level 0 on, which are left out before.
"""

from __future__ import annotations

import re
from typing import Protocol

from ottla.broker.dispatch import API_VERSIONS, RequestContext
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


_FROM_ZERO_SINCE = 4


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
    advertised = broker.advertised_to_brokers if context.from_broker else broker.advertised
    return advertised if context.version >= _FROM_ZERO_SINCE else _without_supported(advertised)


def _without_supported(advertised: ApiVersionsResponse) -> ApiVersionsResponse:
    """Clients of these versions fail when a feature is supported from level 0 on."""
    return ApiVersionsResponse(
        api_keys=advertised.api_keys,
        finalized_features_epoch=advertised.finalized_features_epoch,
        finalized_features=advertised.finalized_features,
    )
