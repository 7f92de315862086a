"""The rules of transactions: what each request does to a transactional id in each state.

The expectations are what Apache Kafka 4.3.1 answered to the same requests.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.coordinator.transactions.records import decode_entry, encode_entry
from ottla.coordinator.transactions.transaction import LAST_EPOCH, Transaction, TransactionState
from ottla.coordinator.transactions.transitions import (
    NeedsProducerId,
    Producer,
    completed,
    ended,
    fenced,
    initialized,
    verified,
    with_partitions,
)
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode

NEVER_USED = 99
NEXT_ID = 8
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT


class Name:
    """A transactional id that takes requests, with the answers of a coordinator that completes at once."""

    def __init__(self, server_version: int = 2, client_version: int = 2) -> None:
        self.server_version, self.client_version = server_version, client_version
        self.now: Transaction | None = None
        self.ids = iter((7, NEXT_ID))

    def init(self, expected: Producer | None = None) -> Producer | ErrorCode:
        new_id = None
        while True:
            try:
                after = initialized(
                    self.now,
                    "tx",
                    60_000,
                    expected,
                    new_id=new_id,
                    server_version=self.server_version,
                    now_ms=1,
                )
            except NeedsProducerId:
                new_id = next(self.ids)
                continue
            except ApiError as error:
                return error.code
            break
        self.now = after
        if after.state is PREPARE_ABORT:
            self.now = completed(after, 2)
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return Producer(after.producer_id, after.producer_epoch)

    def add(self, producer: Producer, *partitions: tuple[str, int]) -> ErrorCode:
        try:
            after = with_partitions(
                self.now, producer, partitions or [("t", 0)], client_version=self.client_version, now_ms=3
            )
        except ApiError as error:
            return error.code
        self.now = after or self.now
        return ErrorCode.NONE

    def end(self, producer: Producer, *, commit: bool = True, complete: bool = True) -> Producer | ErrorCode:
        new_id = None
        while True:
            try:
                after = ended(
                    self.now,
                    producer,
                    commit=commit,
                    client_version=self.client_version,
                    new_id=new_id,
                    now_ms=4,
                )
            except NeedsProducerId:
                new_id = next(self.ids)
                continue
            except ApiError as error:
                return error.code
            break
        if after is not None:
            self.now = completed(after, 5) if complete else after
        assert self.now is not None
        return Producer(self.now.producer_id, self.now.producer_epoch)

    def time_out(self) -> None:
        assert self.now is not None
        self.now = completed(fenced(self.now, server_version=self.server_version, now_ms=6), 7)


def begun(**versions: int) -> tuple[Name, Producer]:
    name = Name(**versions)
    producer = name.init()
    assert producer == Producer(7, 0)
    return name, Producer(7, 0)


def test_a_new_transactional_id_gets_a_new_producer_id_with_epoch_0() -> None:
    name, _ = begun()
    assert name.now is not None
    assert (name.now.state, name.now.start_ms, name.now.timeout_ms) == (EMPTY, -1, 60_000)


def test_a_second_instance_gets_the_next_epoch_and_the_first_one_is_fenced() -> None:
    name, first = begun()
    assert name.init() == Producer(7, 1)
    assert name.add(first) is ErrorCode.PRODUCER_FENCED
    assert name.end(first) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(("server_version", "client_version"), [(0, 0), (1, 0), (2, 0), (2, 2)])
def test_a_second_instance_aborts_the_open_transaction_first(
    server_version: int, client_version: int
) -> None:
    name, first = begun(server_version=server_version, client_version=client_version)
    name.add(first)
    assert name.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert name.now is not None
    assert (name.now.state, name.now.producer_epoch) == (COMPLETE_ABORT, 1)
    assert name.init() == Producer(7, 2)
    assert name.end(first) is ErrorCode.PRODUCER_FENCED


def test_a_producer_continues_after_an_error_and_gets_the_same_answer_when_it_asks_twice() -> None:
    name, first = begun()
    assert name.init(first) == Producer(7, 1)
    assert name.init(first) == Producer(7, 1)
    assert name.init(Producer(7, 1)) == Producer(7, 2)
    assert name.init(first) is ErrorCode.PRODUCER_FENCED
    assert name.init(Producer(NEVER_USED, 2)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_replaced_cannot_continue() -> None:
    name, first = begun()
    name.init()
    assert name.init(first) is ErrorCode.PRODUCER_FENCED


def test_init_waits_while_markers_are_being_written() -> None:
    name, first = begun()
    name.add(first)
    name.end(first, complete=False)
    assert name.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert name.now is not None
    assert name.now.state is PREPARE_COMMIT
    assert name.add(Producer(7, 1)) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_first_partition_begins_the_transaction_and_all_belong_to_it() -> None:
    name, first = begun()
    assert name.add(first, ("t", 0), ("u", 3)) is ErrorCode.NONE
    assert name.now is not None
    assert (name.now.state, name.now.start_ms) == (ONGOING, 3)
    assert name.add(first, ("t", 1)) is ErrorCode.NONE
    assert name.now.partitions == {("t", 0), ("t", 1), ("u", 3)}


def test_partitions_that_are_there_already_are_not_written_again() -> None:
    name, first = begun()
    name.add(first, ("t", 0), ("t", 1))
    assert with_partitions(name.now, first, [("t", 1)], client_version=2, now_ms=9) is None


def test_verification_names_the_partitions_that_are_not_in_the_transaction() -> None:
    name, first = begun()
    name.add(first, ("t", 0))
    wanted = [("t", 0), ("t", 1)]
    assert verified(name.now, first, wanted) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.TRANSACTION_ABORTABLE,
    }
    for wrong, code in (
        (Producer(7, 1), ErrorCode.PRODUCER_FENCED),
        (Producer(8, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ):
        with pytest.raises(ApiError) as refused:
            verified(name.now, wrong, wanted)
        assert refused.value.code is code
    name.end(first)
    assert set(verified(name.now, Producer(7, 1), wanted).values()) == {ErrorCode.TRANSACTION_ABORTABLE}


def test_what_is_not_known_has_no_producer() -> None:
    name = Name()
    assert name.add(Producer(7, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert name.end(Producer(7, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- the first protocol: the epoch stays -------------------------------------------------------------------


def test_commit_and_abort_of_the_first_protocol_keep_the_epoch() -> None:
    name, first = begun(client_version=0)
    for commit, state in ((True, COMPLETE_COMMIT), (False, COMPLETE_ABORT)):
        name.add(first)
        assert name.end(first, commit=commit) == first
        assert name.now is not None
        assert name.now.state is state
        assert name.end(first, commit=commit) == first  # the same request again
        assert name.end(first, commit=not commit) is ErrorCode.INVALID_TXN_STATE


def test_the_first_protocol_cannot_end_what_was_not_begun() -> None:
    name, first = begun(client_version=0)
    assert name.end(first) is ErrorCode.INVALID_TXN_STATE
    assert name.end(first, commit=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("client_version", [0, 2])
def test_an_end_that_is_under_way_is_to_be_waited_for(client_version: int) -> None:
    name, first = begun(client_version=client_version)
    name.add(first)
    name.end(first, complete=False)
    assert name.end(first) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert name.end(first, commit=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("client_version", [0, 2])
def test_a_producer_with_another_id_or_epoch_cannot_end_the_transaction(client_version: int) -> None:
    name, first = begun(client_version=client_version)
    name.add(first)
    assert name.end(Producer(7, 4)) is ErrorCode.PRODUCER_FENCED
    assert name.end(Producer(8, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- the second protocol: an epoch for each transaction ----------------------------------------------------


def test_each_transaction_of_the_second_protocol_has_its_own_epoch() -> None:
    name, first = begun()
    name.add(first)
    assert name.end(first) == Producer(7, 1)
    name.add(Producer(7, 1))
    assert name.end(Producer(7, 1), commit=False) == Producer(7, 2)


def test_a_late_end_never_touches_a_later_transaction() -> None:
    name, first = begun()
    name.add(first)
    name.end(first)
    name.add(Producer(7, 1))
    assert name.end(first) is ErrorCode.PRODUCER_FENCED
    assert name.end(first, commit=False) is ErrorCode.PRODUCER_FENCED
    assert name.now is not None
    assert name.now.state is ONGOING


def test_an_end_that_is_sent_again_is_known_by_its_epoch() -> None:
    name, first = begun()
    name.add(first)
    assert name.end(first) == Producer(7, 1)
    assert name.end(first) == Producer(7, 1)
    assert name.end(first, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert name.end(Producer(7, 1)) is ErrorCode.INVALID_TXN_STATE  # nothing was added in this epoch


def test_the_second_protocol_may_abort_although_nothing_was_added() -> None:
    name, first = begun()
    assert name.end(first) is ErrorCode.INVALID_TXN_STATE
    assert name.end(first, commit=False) == Producer(7, 1)
    assert name.end(first, commit=False) == Producer(7, 1)
    assert name.end(Producer(7, 1), commit=False) == Producer(7, 2)


def test_a_producer_whose_transaction_ran_out_of_time_aborts_and_goes_on() -> None:
    name, first = begun()
    name.add(first)
    name.time_out()
    assert name.end(first) is ErrorCode.INVALID_TXN_STATE
    assert name.end(first, commit=False) == Producer(7, 1)
    assert name.add(first) is ErrorCode.PRODUCER_FENCED
    assert name.add(Producer(7, 1)) is ErrorCode.NONE


def test_a_producer_of_the_first_protocol_is_fenced_when_its_transaction_ran_out_of_time() -> None:
    name, first = begun(client_version=0)
    name.add(first)
    name.time_out()
    assert name.end(first) is ErrorCode.PRODUCER_FENCED
    assert name.add(first) is ErrorCode.PRODUCER_FENCED
    assert name.init(first) == Producer(7, 1)


# -- epochs run out ------------------------------------------------------------------------------------------


def with_epoch(name: Name, epoch: int) -> Producer:
    assert name.now is not None
    name.now = replace(name.now, producer_epoch=epoch)
    return Producer(7, epoch)


def test_init_gives_a_new_id_when_the_epochs_are_used_up() -> None:
    name, _ = begun()
    last = with_epoch(name, LAST_EPOCH - 1)
    assert name.init(last) == Producer(NEXT_ID, 0)
    assert name.init(last) == Producer(NEXT_ID, 0)  # the answer got lost
    assert name.add(last) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert name.add(Producer(NEXT_ID, 0)) is ErrorCode.NONE


def test_init_without_an_epoch_gives_a_new_id_as_well() -> None:
    name, _ = begun()
    last = with_epoch(name, LAST_EPOCH - 1)
    assert name.init() == Producer(NEXT_ID, 0)
    assert name.init(last) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_that_uses_up_the_last_epoch_brings_a_new_id(commit: bool) -> None:
    name, _ = begun()
    last = with_epoch(name, LAST_EPOCH - 1)
    name.add(last)
    assert name.end(last, commit=commit, complete=False) == Producer(7, LAST_EPOCH)  # its marker's epoch
    assert name.now is not None
    name.now = completed(name.now, 5)
    assert name.end(last, commit=commit) == Producer(NEXT_ID, 0)  # the answer got lost
    assert name.add(last) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    name.add(Producer(NEXT_ID, 0))
    assert name.end(Producer(NEXT_ID, 0)) == Producer(NEXT_ID, 1)


@pytest.mark.parametrize("server_version", [0, 2])
def test_a_producer_with_the_last_epoch_can_be_fenced(server_version: int) -> None:
    name, _ = begun(server_version=server_version)
    last = with_epoch(name, LAST_EPOCH - 1)
    name.add(last)
    assert name.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert name.now is not None
    assert name.now.producer_epoch == LAST_EPOCH
    assert name.init() == Producer(NEXT_ID, 0)


# -- the log -------------------------------------------------------------------------------------------------

# As Apache Kafka 4.3.1 wrote them to __transaction_state.
KEY = bytes.fromhex("000000016d")
ONGOING_OF_KAFKA = bytes.fromhex(
    "0001000000000000000200010000ea6001020274020000000000000001a1e54c9dc1000001a1e54c9dc1"
    "020008000000000000000202020002"
)
EMPTY_OF_KAFKA = bytes.fromhex(
    "0001000000000000000200000000ea600000000001a1e54c9b56ffffffffffffffff0100080000000000000002"
)


@pytest.mark.parametrize(
    ("value", "transaction"),
    [
        (
            ONGOING_OF_KAFKA,
            Transaction(
                "m",
                producer_id=2,
                producer_epoch=1,
                timeout_ms=60_000,
                state=ONGOING,
                partitions=frozenset({("t", 0)}),
                start_ms=1794848366017,
                update_ms=1794848366017,
                previous_producer_id=2,
                client_version=2,
            ),
        ),
        (
            EMPTY_OF_KAFKA,
            Transaction(
                "m",
                producer_id=2,
                producer_epoch=0,
                timeout_ms=60_000,
                update_ms=1794848365398,
                previous_producer_id=2,
            ),
        ),
    ],
)
def test_records_are_those_of_kafka(value: bytes, transaction: Transaction) -> None:
    assert decode_entry(KEY, value) == ("m", transaction)
    assert encode_entry(("m", transaction)) == (KEY, value)


def test_a_tombstone_has_no_value() -> None:
    assert encode_entry(("m", None)) == (KEY, None)
    assert decode_entry(KEY, None) == ("m", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, ONGOING_OF_KAFKA),
        (b"\0", ONGOING_OF_KAFKA),
        (KEY, b"\0"),
        (KEY, b"\0\7" + ONGOING_OF_KAFKA[2:]),
        (KEY, ONGOING_OF_KAFKA[:20]),
        (KEY, ONGOING_OF_KAFKA[:16] + b"\x20" + ONGOING_OF_KAFKA[17:]),
    ],
)
def test_bytes_that_are_no_record_of_this_topic_are_malformed(key: bytes | None, value: bytes) -> None:
    with pytest.raises(Malformed):
        decode_entry(key, value)


def test_a_key_of_a_later_version_is_passed_over() -> None:
    assert decode_entry(b"\0\1\0\1m", ONGOING_OF_KAFKA) is None
