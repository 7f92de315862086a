"""ReportDisk: a broker tells the controller how its disk is.

Ours; in Kafka offline log directories are a part of the broker's heartbeat. A broker sends it when something
has changed, and to each new controller. It says all there is to say: what is not named is in order. The
response comes when leaders have moved. Accepted on the inter-broker listener only.
"""

from __future__ import annotations

from ottla.protocol.messages.fetch_image import FailedReplicas
from ottla.protocol.schema import Request, Response, array, boolean, int16, int32, int64


class ReportDiskRequest(Request, api_key=1103, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)
    is_impaired: bool = boolean()  # the disk is full, or refuses to write or to read
    failed: list[FailedReplicas] = array(FailedReplicas)  # without a sound log


class ReportDiskResponse(Response, api_key=1103, versions="0", flexible="0+"):
    error_code: int = int16()
    controller_epoch: int = int32(-1)  # of the controller that knows it now
