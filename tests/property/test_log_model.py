"""A log does what a plain list does, whatever happens to it in whatever order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import Record, decode_batch, encode_batch
from unit.storage.logs import T0, Store, read_all


class Written(NamedTuple):
    """One record as it should be in the log, with the base offset of its batch."""

    base: int
    offset: int
    timestamp: int
    value: bytes


class Sent(NamedTuple):
    """A batch of an idempotent producer, as it was sent and where it went."""

    data: bytes
    sequence: int
    records: int
    offset: int


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store(segment_bytes=2500, index_interval_bytes=120, retention_ms=-1)
        self.records: list[Written] = []
        self.start = 0
        self.end = 0
        self.flushed = 0
        self.epoch = 0
        self.number = 0
        self.sent: dict[int, list[Sent]] = {}

    # -- writing -------------------------------------------------------------------------------------

    def _batch(self, count: int, size: int, shift: int, codec: Codec, **options: Any) -> bytearray:
        rows = []
        for index in range(count):
            self.number += 1
            value = b"%06d" % self.number + b"." * size
            rows.append(Record(index, T0 + self.number * 10 + shift, b"k", value, []))
        return encode_batch(rows, codec=codec, **options)

    def _note(self, data: bytearray, count: int, base: int) -> None:
        for record in decode_batch(data, max_size=1 << 20):
            self.records.append(Written(base, record.offset, record.timestamp, record.value or b""))
        self.end = base + count

    @rule(
        count=st.integers(1, 5),
        size=st.integers(0, 300),
        shift=st.integers(-200, 200),
        codec=st.sampled_from(Codec),
    )
    def append(self, count: int, size: int, shift: int, codec: Codec) -> None:
        data = self._batch(count, size, shift, codec)
        info = self.store.log.append(memoryview(data), self.epoch)
        assert (info.first_offset, info.last_offset, info.duplicate) == (
            self.end,
            self.end + count - 1,
            False,
        )
        self._note(data, count, info.first_offset)

    @rule(producer=st.integers(0, 2), count=st.integers(1, 4), size=st.integers(0, 100))
    def append_in_sequence(self, producer: int, count: int, size: int) -> None:
        sent = self.sent.setdefault(producer, [])
        sequence = sent[-1].sequence + sent[-1].records if sent else 0
        data = self._batch(
            count, size, 0, Codec.NONE, producer_id=producer, producer_epoch=0, base_sequence=sequence
        )
        original = bytes(data)
        info = self.store.log.append(memoryview(data), self.epoch)
        assert (info.first_offset, info.duplicate) == (self.end, False)
        sent.append(Sent(original, sequence, count, info.first_offset))
        self._note(data, count, info.first_offset)

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from([key for key, sent in self.sent.items() if sent]))
        again = data.draw(st.sampled_from(self.sent[producer][-5:]))
        info = self.store.log.append(memoryview(bytearray(again.data)), self.epoch)
        assert (info.duplicate, info.first_offset) == (True, again.offset)

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data(), gap=st.integers(1, 100))
    def leave_a_gap_in_the_sequence(self, data: st.DataObject, gap: int) -> None:
        producer = data.draw(st.sampled_from([key for key, sent in self.sent.items() if sent]))
        last = self.sent[producer][-1]
        wrong = encode_batch(
            [Record(0, T0, None, b"never", [])],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=last.sequence + last.records + gap,
        )
        try:
            self.store.log.append(memoryview(wrong), self.epoch)
        except ApiError as refusal:
            assert refusal.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            raise AssertionError("a gap was accepted")

    @rule()
    def elect(self) -> None:
        self.epoch += 1
        self.store.log.begin_epoch(self.epoch)

    # -- life ----------------------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.store.log.roll()

    @rule()
    def flush(self) -> None:
        self.flushed = self.store.log.flush()
        assert self.flushed == self.end

    @rule()
    def checkpoint(self) -> None:
        self.store.directory.checkpoint()
        self.flushed = self.store.log.recovery_point

    @rule()
    def restart(self) -> None:
        self.store.reopen()
        assert self.store.report.clean and not self.store.report.scanned_bytes
        self.flushed = self.end

    @rule()
    def crash(self) -> None:
        log = self.store.log
        moved = log.log_start_offset > log.segments[0].base_offset
        self.store.crash()
        if moved and self.store.log.log_start_offset != self.start:
            # The start of the log is written down only now and then: deleted records may come back.
            assert self.store.log.log_start_offset < self.start
            self.store.log.delete_records_before(self.start)

    # -- removing ------------------------------------------------------------------------------------

    def _forget_before(self, offset: int) -> None:
        self.start = max(self.start, offset)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.store.log.delete_records_before(offset)
        self._forget_before(offset)

    @rule(keep=st.integers(0, 8000))
    def retain(self, keep: int) -> None:
        config = self.store.log.config
        self.store.log.configure(replace(config, retention_bytes=keep))
        deleted = self.store.log.apply_retention(self.end)
        self.store.log.configure(config)
        if deleted:
            self._forget_before(self.store.log.segments[0].base_offset)
            assert self.store.log.size >= min(keep, 1) or self.start == self.end
        self.store.clock.advance(60_000)
        self.store.directory.delete_pending()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(self.start, self.end - 30), self.end))
        # A batch that reaches across the offset goes as a whole.
        end = min([offset, *(r.base for r in self.records if r.base < offset <= r.offset)])
        if end <= self.start and offset < self.end:
            return  # this would empty the log, which is another operation
        assert self.store.log.truncate_to(offset) == (offset < self.end)
        self.records = [record for record in self.records if record.offset < end]
        self.end = end
        for producer, sent in self.sent.items():
            self.sent[producer] = [each for each in sent if each.offset < end]
            if sent and not self.sent[producer]:
                assert self.store.log.producers.get(producer) is None

    # -- reading -------------------------------------------------------------------------------------

    @property
    def visible(self) -> list[Written]:
        return [record for record in self.records if record.offset >= self.start]

    @rule(data=st.data(), max_bytes=st.integers(1, 3000))
    def read_on(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limit = data.draw(st.integers(offset, self.end))
        found = read_all(self.store.log, offset, max_bytes=max_bytes, limit=limit)
        boundary = max([0, *(r.base for r in self.records if r.base <= limit)])
        last = [r for r in self.records if r.base == boundary and r.offset >= limit]
        upper = boundary if last else limit
        wanted = [(r.offset, r.timestamp, r.value) for r in self.records if offset <= r.offset < upper]
        assert [(r.offset, r.timestamp, r.value) for r in found] == wanted

    @rule(data=st.data())
    def find_by_time(self, data: st.DataObject) -> None:
        timestamp = T0 + data.draw(st.integers(-300, self.number * 10 + 300))
        found = self.store.log.offset_for_timestamp(timestamp)
        first = next((record for record in self.visible if record.timestamp >= timestamp), None)
        assert (found and found[:2]) == (first and (first.offset, first.timestamp))

    @invariant()
    def offsets_agree(self) -> None:
        log = self.store.log
        assert log.failure is None
        assert (log.log_start_offset, log.end_offset) == (self.start, self.end)
        assert log.size == sum(info.size for info in log.segments)
        assert log.recovery_point <= self.end


LogMachine.TestCase.settings = settings(
    max_examples=examples(60, 500),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_a_log_behaves_like_a_list = LogMachine.TestCase
