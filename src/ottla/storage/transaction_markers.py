"""The one record of a control batch: it commits or aborts the transaction of the batch's producer.

Key: version int16, type int16 (0 abort, 1 commit). Value: version int16, epoch of the coordinator int32.
"""

from __future__ import annotations

from struct import Struct, error

from ottla.protocol.records import CompressionError, InvalidRecords, Record, decode_batch, encode_batch
from ottla.storage.producer_state import ControlRecord

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1
_MAX_SIZE = 4096


def read_control_record(batch: bytes | memoryview) -> ControlRecord | None:
    """What a control batch says, None when it ends no transaction (other kinds of control records exist)."""
    try:
        record = decode_batch(batch, max_size=_MAX_SIZE)[0]
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (_ABORT, _COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except (error, IndexError, InvalidRecords, CompressionError):
        return None
    return ControlRecord(kind == _COMMIT, coordinator_epoch)


def encode_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The control batch that ends the transaction of a producer."""
    key = _KEY.pack(_VERSION, _COMMIT if commit else _ABORT)
    return encode_batch(
        [Record(0, timestamp, key, _VALUE.pack(_VERSION, coordinator_epoch), [])],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
