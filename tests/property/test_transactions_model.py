"""A log with transactions shows committed records and no others, whatever happens to it in whatever order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from effort import examples
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex
from unit.storage.committed import Entry, Transactions, read_committed
from unit.storage.logs import Store, batch, from_producer

PRODUCERS = st.integers(1, 3)


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store(segment_bytes=1500, index_interval_bytes=120, retention_ms=-1)
        self.follower = Store(segment_bytes=1100, index_interval_bytes=80, retention_ms=-1)
        self.model = Transactions()
        self.start = 0
        self.end = 0
        self.number = 0
        self.epochs = dict.fromkeys(range(4), 0)
        self.sequences: dict[int, int] = {}

    # -- writing -------------------------------------------------------------------------------------

    def _append(self, data: memoryview, producer: int, values: list[bytes]) -> None:
        info = self.store.log.append(data, 0)
        assert info.first_offset == self.end
        for value in values:
            self.model.entries.append(Entry(self.end, producer, value))
            self.end += 1

    def _value(self) -> bytes:
        self.number += 1
        return b"%06d" % self.number

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        value = self._value()
        self._append(batch(count, value=value), -1, [value] * count)

    @rule(producer=PRODUCERS, count=st.integers(1, 4))
    def append_in_transaction(self, producer: int, count: int) -> None:
        value, epoch = self._value(), self.epochs[producer]
        known = self.store.log.producers.get(producer)
        sequence = 0 if known is None or known.epoch != epoch else known.last_sequence + 1
        data = from_producer(sequence, count, producer=producer, epoch=epoch, value=value, transactional=True)
        self._append(data, producer, [value] * count)

    @rule(producer=PRODUCERS, commit=st.booleans(), bump=st.booleans())
    def end_transaction(self, producer: int, commit: bool, bump: bool) -> None:
        self.epochs[producer] += bump
        info = self.store.log.append_marker(
            producer, self.epochs[producer], 0, commit=commit, coordinator_epoch=self.number
        )
        assert info.first_offset == self.end
        self.model.entries.append(Entry(self.end, producer, b"", commit))
        self.end += 1

    # -- life ----------------------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.store.log.roll()

    @rule()
    def flush(self) -> None:
        self.store.log.flush()

    @rule()
    def close_files(self) -> None:
        for segment in self.store.log._segments:
            segment.close_file()

    @rule()
    def restart(self) -> None:
        self.store.reopen()
        assert self.store.report.clean and not self.store.report.scanned_bytes

    @rule()
    def crash(self) -> None:
        self.store.crash()
        self.store.log.delete_records_before(self.start)

    @rule(data=st.data())
    def damage_an_index(self, data: st.DataObject) -> None:
        """Of a closed segment, behind the back of the log."""
        closed = [segment for segment in self.store.log._segments[:-1] if segment.has_aborted]
        if closed:
            segment = data.draw(st.sampled_from(closed))
            segment.close_file()
            file = self.store.disk.open(segment.path.with_suffix(".txnindex"))
            file.truncate(data.draw(st.integers(1, 33)))

    # -- removing ------------------------------------------------------------------------------------

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        bases = [segment.base_offset for segment in self.store.log.segments]
        offset = data.draw(st.integers(max(self.start + 1, self.end - 10), max(self.end, self.start + 1)))
        self.store.log.truncate_to(offset)
        if offset >= self.end:
            assert (self.store.log.log_start_offset, self.store.log.end_offset) == (self.start, self.end)
            return
        self.end = self.store.log.end_offset
        assert self.end <= max(offset, bases[0])
        self.start = self.store.log.log_start_offset
        kept = self.end if self.store.log.size else 0  # a log that begins anew knows nothing of before
        self.model.entries = [entry for entry in self.model.entries if entry.offset < kept]
        self._epochs_from_log()
        if self.follower.log.end_offset > self.end:
            self.follower.log.truncate_to(self.end)

    def _epochs_from_log(self) -> None:
        for producer in self.epochs:
            known = self.store.log.producers.get(producer)
            self.epochs[producer] = 0 if known is None else known.epoch

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.store.log.delete_records_before(self.start)

    @rule()
    def retain(self) -> None:
        log = self.store.log
        config = log.config
        log.configure(replace(config, retention_bytes=3000))
        log.apply_retention(log.last_stable_offset(self.end))
        log.configure(config)
        self.start = log.log_start_offset

    # -- a follower ----------------------------------------------------------------------------------

    @rule()
    def follow(self) -> None:
        ours, theirs = self.follower.log, self.store.log
        if ours.end_offset < theirs.log_start_offset:
            return  # it would begin anew, with the rest of transactions that began before
        while ours.end_offset < theirs.end_offset:
            found = theirs.read(ours.end_offset, 700, theirs.end_offset)
            assert found is not None
            ours.append_replicated(memoryview(found.read()))
        assert [r for r in self._index_of(self.follower) if r.last_offset >= self.start] == [
            entry for entry in self.model.aborted() if entry.last_offset >= self.start
        ]
        if self.start < ours.end_offset:
            ours.delete_records_before(self.start)
            self._check(self.follower)

    # -- reading -------------------------------------------------------------------------------------

    @staticmethod
    def _index_of(store: Store) -> list[AbortedTransaction]:
        """All entries of all transaction indexes, after a look at each."""
        log = store.log
        log.aborted_transactions(0, log.end_offset)
        found: list[AbortedTransaction] = []
        for segment in log._segments:
            found += segment.load_transactions()
        return found

    def _check(self, store: Store) -> None:
        log = store.log
        stable = self.model.last_stable_offset(self.start, self.end)
        assert log.last_stable_offset(self.end) == stable
        assert read_committed(log, self.start, max_bytes=400) == self.model.committed(self.start, stable)

    @invariant()
    def committed_records_and_no_others_are_read(self) -> None:
        self._check(self.store)

    @rule(data=st.data(), max_bytes=st.integers(1, 2000))
    def read_from_anywhere(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        stable = self.model.last_stable_offset(self.start, self.end)
        found = read_committed(self.store.log, offset, max_bytes=max_bytes)
        assert found == self.model.committed(offset, stable)

    @rule()
    def indexes_hold_what_the_markers_say(self) -> None:
        base = self.store.log.segments[0].base_offset
        expected = [entry for entry in self.model.aborted() if entry.last_offset >= base]
        assert self._index_of(self.store) == expected
        self.store.log.flush()
        for name, data in self.store.files(".txnindex").items():
            assert len(data) % 34 == 0
            TransactionIndex.decode(data, int(name.split(".")[0]), self.end)


TransactionMachine.TestCase.settings = settings(
    max_examples=examples(40, 500),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_readers_of_committed_records_see_what_the_model_says = TransactionMachine.TestCase
