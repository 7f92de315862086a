"""Which segments may go."""

from ottla.storage.indexed_segment import SegmentInfo
from ottla.storage.log_config import LogConfig
from ottla.storage.retention import segments_to_delete

NOW = 1_000_000


def decide(
    segments: list[SegmentInfo],
    *,
    log_start_offset: int = 0,
    end_offset: int = 40,
    high_watermark: int = 40,
    **config: object,
) -> int:
    settings = LogConfig.of(
        {"retention.ms": -1} | {key.replace("_", "."): value for key, value in config.items()}
    )
    return segments_to_delete(
        segments,
        settings,
        log_start_offset=log_start_offset,
        end_offset=end_offset,
        high_watermark=high_watermark,
        now_ms=NOW,
    ).segments


def row(*ages: int, size: int = 100) -> list[SegmentInfo]:
    """Segments of ten records each whose newest record is so many milliseconds old; the last is active."""
    return [SegmentInfo(number * 10, size, NOW - age) for number, age in enumerate(ages)]


def test_without_limits_nothing_is_deleted() -> None:
    assert decide(row(9999, 9999, 9999, 9999)) == 0


def test_retention_by_time_deletes_segments_up_to_the_first_young_one() -> None:
    assert decide(row(500, 400, 50, 400), retention_ms=300) == 2


def test_retention_by_time_deletes_the_active_segment_when_all_records_are_old() -> None:
    assert decide(row(500, 400, 400, 400), retention_ms=300) == 4


def test_an_empty_active_segment_is_not_deleted() -> None:
    segments = [*row(500, 400), SegmentInfo(20, 0, -1)]
    assert decide(segments, end_offset=20, retention_ms=300) == 2


def test_retention_by_size_deletes_whole_segments_above_the_limit() -> None:
    assert decide(row(0, 0, 0, 0), retention_bytes=250) == 1
    assert decide(row(0, 0, 0, 0), retention_bytes=200) == 2
    assert decide(row(0, 0, 0, 0), retention_bytes=400) == 0


def test_segments_before_the_log_start_are_deleted_with_any_policy() -> None:
    assert decide(row(0, 0, 0, 0), log_start_offset=20, cleanup_policy="compact") == 2
    assert decide(row(0, 0, 0, 0), log_start_offset=19, cleanup_policy="compact") == 1
    assert decide(row(0, 0, 0, 0), log_start_offset=40) == 3


def test_a_compacted_topic_keeps_its_old_records() -> None:
    assert decide(row(500, 500, 500, 500), retention_ms=300, cleanup_policy="compact") == 0
    assert decide(row(500, 500, 500, 500), retention_ms=300, cleanup_policy="compact,delete") == 4


def test_segments_above_the_high_watermark_are_not_deleted() -> None:
    assert decide(row(500, 500, 500, 500), retention_ms=300, high_watermark=25) == 2
