"""Each anomaly is found in a history made by hand that has it, and none in one that is sound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transaction_history.anomalies import anomalies
from transaction_history.cycles import components, interleaved
from transaction_history.history import (
    History,
    Key,
    LogEnd,
    OffsetRead,
    Outcome,
    Poll,
    Read,
    Send,
    Source,
    Transaction,
)

A: Key = ("t", 0)
B: Key = ("t", 1)
OUT: Key = ("out", 0)
COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def transaction(
    name: str,
    *sends: Send,
    outcome: Outcome = COMMITTED,
    transactional_id: str = "id",
    epoch: int = 0,
    commit_sent: float | None = 1.0,
) -> Transaction:
    return Transaction(
        name,
        transactional_id,
        (7, epoch),
        list(sends),
        outcome=outcome,
        commit_sent=commit_sent,
        ended=2.0 if outcome is COMMITTED else None,
    )


def poll(
    key: Key,
    start: int,
    end: int,
    *records: tuple[int, str],
    reader: str = "reader",
    assignment: int = 0,
    is_committed: bool = True,
    at: float = 5.0,
) -> Poll:
    return Poll(reader, assignment, is_committed, key, start, end, records, at)


def kinds(history: History) -> set[str]:
    return {anomaly.kind for anomaly in anomalies(history)}


def sound() -> History:
    """Two transactions of one producer, one of another that was aborted, and one nobody knows."""
    return History(
        [
            transaction("t1", Send(A, "a1", 0), Send(B, "b1", 0), epoch=0),
            transaction("t2", Send(A, "a2", 4), Send(B, "b2", 2), epoch=1),
            transaction("t3", Send(A, "a3", 2), outcome=ABORTED, transactional_id="other", commit_sent=None),
            transaction("t4", Send(B, "b4"), outcome=UNKNOWN, transactional_id="third"),
        ],
        [
            poll(A, 0, 2, (0, "a1")),
            poll(A, 2, 6, (4, "a2")),
            poll(B, 0, 4, (0, "b1"), (2, "b2")),
            poll(A, 0, 6, (0, "a1"), (2, "a3"), (4, "a2"), reader="all", is_committed=False),
        ],
        ends={A: LogEnd(6, 6), B: LogEnd(4, 4)},
    )


def test_a_sound_history_has_no_anomaly() -> None:
    assert anomalies(sound()) == []


def test_an_aborted_read_is_found() -> None:
    history = sound()
    history.polls[1] = poll(A, 2, 6, (2, "a3"), (4, "a2"))
    assert kinds(history) == {"aborted read"}


@pytest.mark.parametrize("key", [A, B])
def test_a_value_that_nobody_sent_there_is_an_aborted_read(key: Key) -> None:
    history = sound()
    history.transactions.append(transaction("t5", Send(B, "x"), outcome=UNKNOWN, epoch=5))
    history.polls.append(poll(key, 10, 11, (10, "x" if key == A else "y"), assignment=1))
    assert kinds(history) == {"aborted read"}


@pytest.mark.parametrize("commit_sent", [None, 6.0])
def test_a_read_before_the_commit_is_an_intermediate_read(commit_sent: float | None) -> None:
    history = sound()
    history.transactions[3] = transaction(
        "t4", Send(B, "b4", 4), outcome=UNKNOWN, transactional_id="third", commit_sent=commit_sent
    )
    history.polls.append(poll(B, 4, 5, (4, "b4")))
    assert kinds(history) == {"intermediate read"}


@pytest.mark.parametrize("outcome", [COMMITTED, UNKNOWN])
def test_a_torn_transaction_is_found(outcome: Outcome) -> None:
    """Also if its outcome is not known, and if two readers see the two parts."""
    history = sound()
    history.transactions[1].outcome = outcome
    history.polls[1] = poll(A, 2, 6)
    assert kinds(history) == {"torn transaction"}
    history.polls[2] = replace(history.polls[2], reader="another")
    assert kinds(history) == {"torn transaction"}


def test_an_unknown_transaction_may_be_there_or_not() -> None:
    history = sound()
    history.transactions[1].outcome = UNKNOWN
    assert anomalies(history) == []
    history.polls[1], history.polls[2] = poll(A, 2, 6), poll(B, 0, 4, (0, "b1"))
    assert anomalies(history) == []


def test_a_lost_write_is_found() -> None:
    history = sound()
    history.polls[1], history.polls[2] = poll(A, 2, 6), poll(B, 0, 4, (0, "b1"))
    assert kinds(history) == {"lost write"}


def test_a_write_that_no_reader_came_to_is_not_lost() -> None:
    history = sound()
    history.ends.clear()
    history.polls[1:3] = [poll(A, 2, 3), poll(B, 0, 1, (0, "b1"))]
    assert anomalies(history) == []


def test_a_write_without_an_offset_is_lost_if_it_is_not_in_the_whole_log() -> None:
    history = sound()
    history.transactions.append(transaction("t5", Send(A, "a5"), epoch=2))
    assert kinds(history) == {"lost write"}


def test_a_duplicate_write_is_found() -> None:
    history = sound()
    history.polls.append(poll(A, 6, 7, (6, "a2")))
    assert kinds(history) == {"duplicate write"}


def test_an_inconsistent_offset_is_found_between_readers_and_with_an_acknowledgement() -> None:
    history = sound()
    history.transactions.append(transaction("t5", Send(A, "a5"), outcome=UNKNOWN, epoch=5))
    history.polls.append(poll(A, 2, 3, (2, "a5"), reader="all", assignment=1, is_committed=False))
    assert kinds(history) == {"inconsistent offset"}
    del history.polls[3]
    assert kinds(history) == {"inconsistent offset"}


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (poll(A, 7, 8), "poll skip"),
        (poll(A, 4, 6, (4, "a2")), "nonmonotonic poll"),
        (poll(A, 6, 9, (8, "x"), (7, "y")), "nonmonotonic poll"),
        (poll(A, 6, 9, (3, "x")), "nonmonotonic poll"),
    ],
)
def test_polls_out_of_order_are_found(last: Poll, kind: str) -> None:
    history = sound()
    history.transactions += [
        transaction("t5", Send(A, "x"), outcome=UNKNOWN, transactional_id="x"),
        transaction("t6", Send(A, "y"), outcome=UNKNOWN, transactional_id="y"),
    ]
    history.polls.append(last)
    assert kind in kinds(history)
    history.polls[-1] = replace(last, assignment=1)
    assert ("nonmonotonic poll" in kinds(history)) == bool(last.records and last.records[0][1] == "x")


def test_a_reader_of_all_records_that_passes_over_one_is_found() -> None:
    history = sound()
    history.polls[3] = poll(A, 0, 6, (0, "a1"), (4, "a2"), reader="all", is_committed=False)
    assert kinds(history) == {"poll skip"}


def test_sends_out_of_order_are_found_within_and_between_instances() -> None:
    history = History([transaction("t1", Send(A, "x", 3), Send(A, "y", 1))])
    assert kinds(history) == {"nonmonotonic send"}
    history = History(
        [
            transaction("t2", Send(A, "y", 1), epoch=4),
            transaction("t1", Send(A, "x", 3), epoch=3, outcome=ABORTED),
        ]
    )
    assert kinds(history) == {"nonmonotonic send"}


def test_a_write_cycle_of_one_transactional_id_is_found() -> None:
    writes = [
        transaction("t1", Send(A, "a1", 0), Send(B, "b1", 1), epoch=0),
        transaction("t2", Send(A, "a2", 1), Send(B, "b2", 0), epoch=1),
    ]
    assert "write cycle" in kinds(History(writes))


def test_a_write_cycle_between_transactional_ids_is_allowed_and_counted() -> None:
    history = History(
        [
            transaction("t1", Send(A, "a1", 0), Send(B, "b1", 1)),
            transaction("t2", Send(A, "a2", 1), Send(B, "b2", 0), transactional_id="other"),
        ]
    )
    assert anomalies(history) == []
    assert interleaved(history) == 1


def test_a_cycle_of_reads_is_found() -> None:
    one = transaction("t1", Send(A, "a1", 0))
    other = transaction("t2", Send(B, "b2", 0), transactional_id="other")
    one.reads.append(Read(B, "b2"))
    assert anomalies(History([one, other])) == []
    other.reads.append(Read(A, "a1"))
    assert kinds(History([one, other])) == {"read cycle"}


def test_a_cycle_of_a_read_and_writes_is_found() -> None:
    """The first of two transactions of one id reads what the second one writes."""
    one = transaction("t1", Send(A, "a1", 0), epoch=0)
    other = transaction("t2", Send(A, "a2", 1), epoch=1)
    one.reads.append(Read(A, "a2"))
    assert kinds(History([one, other])) == {"read cycle"}


def test_components_of_a_long_chain_and_two_cycles() -> None:
    edges = {str(n): {str(n + 1)} for n in range(2000)}
    assert components(edges) == []
    edges |= {"5": {"6", "3"}, "1000": {"1001", "999"}}
    assert components(edges) == [["1000", "999"], ["3", "4", "5"]]


# -- groups ------------------------------------------------------------------------------------------------


def transforming() -> History:
    """Two records of A, each transformed into one of OUT; a third is not transformed yet."""
    made = [
        transaction("m1", Send(OUT, "o0", 0, Source("g", A, 0)), epoch=0, transactional_id="maker"),
        transaction("m2", Send(OUT, "o1", 2, Source("g", A, 1)), epoch=1, transactional_id="maker"),
    ]
    made[0].offsets = {("g", A): 1}
    made[1].offsets = {("g", A): 2}
    made[1].commit_sent, made[1].ended = 3.0, 4.0
    return History(
        [transaction("t", Send(A, "a0", 0), Send(A, "a1", 1), Send(A, "a2", 2)), *made],
        [poll(A, 0, 4, (0, "a0"), (1, "a1"), (2, "a2")), poll(OUT, 0, 4, (0, "o0"), (2, "o1"))],
        offset_reads=[
            OffsetRead("g", A, -1, 0.0, 0.5),
            OffsetRead("g", A, 1, 2.5, 2.6),
            OffsetRead("g", A, 1, 3.5, 3.6),
            OffsetRead("g", A, 2, 5.0, 5.1),
        ],
        final_offsets={("g", A): 2},
    )


def test_records_that_are_transformed_once_are_no_anomaly() -> None:
    assert anomalies(transforming()) == []


@pytest.mark.parametrize(
    ("source", "final", "kind"),
    [(0, 2, "transformed twice"), (1, 3, "not transformed"), (1, 1, "offset missing")],
)
def test_records_not_transformed_exactly_once_are_found(source: int, final: int, kind: str) -> None:
    history = transforming()
    history.transactions[2].sends[0].source = Source("g", A, source)
    history.final_offsets["g", A] = final
    assert kind in kinds(history)


@pytest.mark.parametrize(
    "read",
    [
        OffsetRead("g", A, 2, 2.5, 2.9),  # before its commit: it was pending
        OffsetRead("g", A, 1, 5.0, 5.1),  # another one was committed
        OffsetRead("g", A, 9, 5.0, 5.1),  # nobody ever committed it
    ],
)
def test_offsets_that_do_not_go_with_their_transactions_are_found(read: OffsetRead) -> None:
    history = transforming()
    history.offset_reads.append(read)
    assert kinds(history) == {"offset read"}


def test_the_offset_of_an_aborted_transaction_is_found() -> None:
    history = transforming()
    aborted = transaction("m3", outcome=ABORTED, transactional_id="maker", epoch=2)
    aborted.offsets = {("g", A): 3}
    history.transactions.append(aborted)
    history.offset_reads.append(OffsetRead("g", A, 3, 5.0, 5.1))
    assert kinds(history) == {"offset read"}


def test_a_log_that_does_not_become_stable_is_found() -> None:
    history = sound()
    history.ends[A] = LogEnd(2, 6)
    assert kinds(history) == {"stuck"}
