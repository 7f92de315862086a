"""The table of errors, held against kio's, which is generated from Kafka's own."""

from __future__ import annotations

import kio.schema.errors

from ottla.protocol.errors import ApiError, ErrorCode


def test_error_codes_and_retriability_equal_those_of_kafka() -> None:
    theirs = {code.value: (code.name.upper(), code.retriable) for code in kio.schema.errors.ErrorCode}
    ours = {int(code): (code.name, code.retriable) for code in ErrorCode}
    assert ours == theirs


def test_the_codes_have_no_gap_and_a_text_each() -> None:
    assert sorted(ErrorCode) == list(range(-1, 134))
    assert all(code.text.endswith(".") for code in ErrorCode)
    assert len({code.text for code in ErrorCode}) == len(ErrorCode)


def test_an_api_error_has_the_text_of_its_code_unless_it_has_its_own() -> None:
    error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert error.message == str(error) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.text
    assert (
        ApiError(ErrorCode.INVALID_CONFIG, "segment.bytes is too small").message
        == "segment.bytes is too small"
    )
    assert repr(ApiError(ErrorCode.NONE, "fine")) == "ApiError(NONE, 'fine')"
