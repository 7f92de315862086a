"""The records of `__transaction_state`, in Kafka's own format: one per transactional id.

The key is the transactional id, with two bytes of version in front; the value is what is known about it, or
nothing, when it has expired. Kafka's tools read our log, and we read Kafka's. Values are written in version
1, as Kafka 4 does; version 0 is of older ones.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from ottla.coordinator.runtime.state import RecordCodec
from ottla.coordinator.transactions.transaction import TopicPartition, Transaction, TransactionState
from ottla.protocol.codec import Malformed, decode, encode
from ottla.protocol.schema import Data, Struct, array, int8, int16, int32, int64, string

_PREFIX = struct.Struct(">h")
_KEY_VERSION = 0
_VALUE_VERSION = 1


class TransactionLogKey(Data, versions="0"):
    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Data, versions="0-1", flexible="1+"):
    producer_id: int = int64()
    previous_producer_id: int = int64(-1, versions="1+", tag=0)
    next_producer_id: int = int64(-1, versions="1+", tag=1)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(0, versions="1+", tag=2)


Entry: TypeAlias = tuple[str, Transaction | None]
"""A transactional id and what is known about it; None: it has expired."""


def encode_entry(entry: Entry) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in a record."""
    transactional_id, transaction = entry
    key = _PREFIX.pack(_KEY_VERSION) + b"".join(
        encode(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)
    )
    if transaction is None:
        return key, None
    return key, _PREFIX.pack(_VALUE_VERSION) + b"".join(encode(_value(transaction), _VALUE_VERSION))


def _value(transaction: Transaction) -> TransactionLogValue:
    is_empty = transaction.state is TransactionState.EMPTY
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if is_empty else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )


def decode_entry(key: bytes | None, value: bytes | None) -> Entry | None:
    """What a record says; None for a key of a later version. Malformed when the bytes do not fit."""
    if key is None or len(key) < _PREFIX.size:
        raise Malformed("a record without a key")
    if _PREFIX.unpack_from(key)[0] != _KEY_VERSION:
        return None
    transactional_id = decode(TransactionLogKey, _KEY_VERSION, memoryview(key), _PREFIX.size).transactional_id
    if value is None:
        return transactional_id, None
    if len(value) < _PREFIX.size:
        raise Malformed("a value without a version")
    version = _PREFIX.unpack_from(value)[0]
    if version not in TransactionLogValue.versions:
        raise Malformed(f"TransactionLogValue has no version {version}")
    return transactional_id, _transaction(
        transactional_id, decode(TransactionLogValue, version, memoryview(value), _PREFIX.size)
    )


def _transaction(transactional_id: str, value: TransactionLogValue) -> Transaction:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise Malformed(f"there is no transaction status {value.transaction_status}") from None
    return Transaction(
        transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            (each.topic, index) for each in value.transaction_partitions or () for index in each.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


TRANSACTION_RECORDS: RecordCodec[Entry] = RecordCodec(encode_entry, decode_entry)
