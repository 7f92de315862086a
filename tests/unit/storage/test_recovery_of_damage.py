"""Opening what a damaged disk left."""

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.log_config import LogConfig
from unit.storage.filled import FIRST, filled
from unit.storage.logs import Store, batch, offsets


class TestDamage:
    def offline(self, store: Store) -> ApiError:
        """The partition is offline, all others are served, and a clean stop does not hide it."""
        healthy = store.directory.create("other", 0, bytes(16), store.config)
        healthy.append(batch(1), 0)
        log = store.crash()
        assert log.failure is not None
        assert log.failure.code == ErrorCode.KAFKA_STORAGE_ERROR
        for call in (
            lambda: log.append(batch(1), 0),
            lambda: log.read(0, 1, 1),
            lambda: log.apply_retention(1),
        ):
            with pytest.raises(ApiError):
                call()
        assert offsets(store.directory.logs["other", 0]) == [0]
        again = store.reopen()
        assert again.failure is not None
        assert store.directory.logs["other", 0].failure is None
        return log.failure

    def test_a_wrong_byte_in_the_middle_of_the_log_takes_the_partition_offline(self) -> None:
        store = filled()
        second = list(store.files(".log"))[1]
        store.damage(second, 300)
        failure = self.offline(store)
        assert second in failure.message and "CRC" in failure.message and "byte" in failure.message

    def test_a_cut_segment_in_the_middle_takes_the_partition_offline(self) -> None:
        store = filled()
        second = list(store.files(".log"))[1]
        store.cut(second, 300)
        assert second in self.offline(store).message

    def test_a_torn_batch_in_the_middle_is_truncated_only_after_a_power_loss(self) -> None:
        store = filled()
        second = list(store.files(".log"))[1]
        store.damage(second, 300)
        store.directory.abandon()
        store.disk._boots += 1
        log = store.crash()
        assert log.failure is None
        assert offsets(log) == list(range(log.end_offset))
        assert 22 <= log.end_offset < 44
        assert list(store.files(".log"))[-1] == second
        assert store.report.truncated_bytes > 1000

    def test_damage_before_the_recovery_point_takes_the_partition_offline(self) -> None:
        store = filled()
        store.log.flush()
        store.directory.checkpoint()
        second = list(store.files(".log"))[1]
        store.cut(second, -1)
        assert second in self.offline(store).message

    def test_a_missing_segment_takes_the_partition_offline(self) -> None:
        store = filled()
        store.log.flush()
        store.directory.checkpoint()
        second = list(store.files(".log"))[1]
        store.disk.remove(store.folder / second)
        self.offline(store)

    def test_a_gap_in_a_log_that_was_compacted_is_not_damage(self) -> None:
        store = filled(segment_bytes=100_000)
        store.log.roll()
        store.log.configure(LogConfig(cleanup_policy=("compact",)))
        gap = batch(1, leader_epoch=store.log.leader_epochs.latest)
        gap[:8] = (1000).to_bytes(8, "big")
        store.log.append_replicated(gap)
        store.log.configure(LogConfig(cleanup_policy=("delete",)))
        store.log.roll()
        assert store.crash().failure is None
        store.log.flush()
        store.directory.checkpoint()
        assert offsets(store.crash()) == [*range(60), 1000]

    def test_a_synced_tail_is_not_truncated(self) -> None:
        store = filled()
        store.log.flush()
        store.directory.checkpoint()
        store.damage(list(store.files(".log"))[-1], -3)
        before = store.files(".log")
        assert "CRC" in self.offline(store).message
        assert store.files(".log") == before, "nothing may be thrown away"

    def test_damage_found_while_reading_takes_the_partition_offline(self) -> None:
        store = filled()
        store.reopen()
        store.damage(f"{FIRST}.log", 0, b"\xff" * 500)
        with pytest.raises(ApiError) as failure:
            store.log.read(0, 100, 60)
        assert f"{FIRST}.log" in failure.value.message
        assert store.log.failure is failure.value


def test_damage_found_by_retention_takes_the_partition_offline() -> None:
    store = Store(segment_bytes=300)
    for _ in range(6):
        store.log.append(batch(1), 0)
    store.directory.close()
    # With a file that the stop did not leave, the start does not take the timestamps from the stop's list.
    store.disk.replace(store.folder / "leftover.tmp", b"", sync=True)
    log = store.crash()
    store.disk.remove(store.folder / "00000000000000000000.timeindex")
    store.damage("00000000000000000000.log", 0, bytes(30))
    with pytest.raises(ApiError, match="no batch header at byte 0"):
        log.apply_retention(log.end_offset)
    assert log.failure is not None
