"""A transactional producer that sends exactly the requests that a test wants, by either protocol.

Clients hide what is answered and retry by themselves. This one waits only for what passes: a coordinator that
is not there yet, and the markers of the transaction before.
"""

from __future__ import annotations

import time
from typing import Any

from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from raw_client import RawClient

PATIENCE = 60.0
_TRANSACTION = 1
_COORDINATOR_LOADS, _NOT_AVAILABLE, _NOT_COORDINATOR, _CONCURRENT = 14, 15, 16, 51
_NOT_ENOUGH_REPLICAS = 19
"""What Produce answers while a coordinator is not there."""
_PASSES = (_COORDINATOR_LOADS, _NOT_AVAILABLE, _NOT_COORDINATOR, _CONCURRENT, _NOT_ENOUGH_REPLICAS)


class WireProducer:
    """`second` is the protocol where leaders add partitions and each transaction has an epoch (KIP-890)."""

    def __init__(
        self, client: RawClient, name: str = "tx", *, second: bool = False, timeout_ms: int = 60_000
    ) -> None:
        self.client = client
        """Of the coordinator."""
        self.leader: RawClient | None = None
        """Of the partitions, if that is another broker."""
        self.name = name
        self.second = second
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self, *, goes_on: bool = False) -> int:
        """The error code. With `goes_on` it says which producer it was, as clients do after some errors."""
        self.find()
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=self.timeout_ms)
        if goes_on:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        answer = self._asked(request, 4, lambda answer: answer.error_code)
        if not answer.error_code:
            self._is_now(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def find(self) -> None:
        """The first one who looks for a coordinator has its topic made."""
        find = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=[self.name])
        self._asked(find, 4, lambda answer: answer.coordinators[0].error_code)

    def _is_now(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()

    def add(self, topic: str, *partitions: int) -> int:
        """The error code of the first partition."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions or (0,)))],
        )

        def code(answer: Any) -> int:
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(results[0].partition_error_code)

        return code(self._asked(request, 3, code))

    def send(self, topic: str, value: bytes, partition: int = 0) -> int:
        """The error code. The partition is added before, unless the leader does it."""
        if not self.second:
            refused = self.add(topic, partition)
            if refused:
                return refused
        sequence = self._sequences.get((topic, partition), 0)
        batch = encode_batch(
            [Record(0, time.time_ns() // 1_000_000, None, value, [])],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=10_000, topic_data=[data])

        def code(answer: Any) -> int:
            return int(answer.responses[0].partition_responses[0].error_code)

        refused = code(self._asked(request, 12 if self.second else 11, code, self.leader))
        if not refused:
            self._sequences[topic, partition] = sequence + 1
        return refused

    def end(self, *, commit: bool = True) -> int:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self._asked(request, 5 if self.second else 4, lambda answer: answer.error_code)
        if not answer.error_code and self.second:
            self._is_now(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def described(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        answer = self._asked(request, 0, lambda answer: answer.transaction_states[0].error_code)
        return answer.transaction_states[0]

    def _asked(self, request: Any, version: int, code: Any, client: RawClient | None = None) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = (client or self.client).call(request, version)
            if code(answer) not in _PASSES:
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.01)
