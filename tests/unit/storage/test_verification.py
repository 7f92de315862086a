"""Verifications of producers: none that a request waits for is forgotten, whatever others ask."""

from __future__ import annotations

from ottla.storage.verification import VerificationGuard, Verifications


def begin(verifications: Verifications, producer_id: int, sequence: int = 0) -> VerificationGuard:
    return verifications.begin(producer_id, 0, sequence, 0, bumps_epoch=False)


def guard_of(verifications: Verifications, producer_id: int) -> VerificationGuard | None:
    known = verifications.get(producer_id)
    return None if known is None else known.guard


def test_invented_producers_do_not_end_the_verification_of_a_request_under_way() -> None:
    verifications = Verifications(limit=100)
    guard = begin(verifications, 7)
    for invented in range(1000, 3000):
        begin(verifications, invented)
    assert guard_of(verifications, 7) is guard
    assert len(verifications) <= 101


def test_all_that_are_under_way_are_kept_and_what_is_over_the_limit_goes_when_they_are_done() -> None:
    verifications = Verifications(limit=100)
    guards = [begin(verifications, number) for number in range(500)]
    assert [guard_of(verifications, number) for number in range(500)] == guards
    guards.clear()
    for number in range(1000, 1100):
        begin(verifications, number)
    assert len(verifications) <= 100


def test_the_lowest_sequence_is_remembered_when_no_request_is_under_way() -> None:
    verifications = Verifications()
    begin(verifications, 7, sequence=3)  # was refused, and is sent again
    guard = begin(verifications, 7, sequence=4)
    known = verifications.get(7)
    assert known is not None and known.guard is guard
    assert known.lowest_sequence == 3


def test_a_guard_that_is_over_is_not_that_of_the_next_verification() -> None:
    verifications = Verifications()
    before = begin(verifications, 7)
    verifications.end(7)
    assert begin(verifications, 7) is not before
