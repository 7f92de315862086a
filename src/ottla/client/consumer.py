"""`ottla.Consumer`: records of topics, one at a time or in batches, for groups and for single readers.

    with ottla.Consumer("orders", bootstrap_servers="127.0.0.1:9092", group_id="billing") as consumer:
        for record in consumer:
            ...

Records are read ahead in batches and handed out one by one. A record counts as finished when the next one is
asked for; only finished records are committed by themselves, so a crash or an error in the loop loses none
(`delivery="at-least-once"`). `commit()` says that everything handed out so far is finished. See
ottla.client.delivery for the other options. A consumer is used by one thread at a time; `stop()` may be
called from anywhere.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from ottla.client import process_life
from ottla.client.commits import Committer
from ottla.client.configuration import LIBRDKAFKA_LOG, LOG, make_client
from ottla.client.dead_letters import DeadLetters
from ottla.client.delivery import (
    ARGUMENTS,
    CommitMode,
    Delivery,
    GroupProtocol,
    Start,
    commit_mode,
    librdkafka_config,
)
from ottla.client.errors import ClientError, ClosedError, ConfigurationError
from ottla.client.interceptors import ConsumerInterceptor
from ottla.client.librdkafka import confluent_kafka
from ottla.client.reading import OnBadRecord, RecordReader
from ottla.client.rebalancing import Rebalanced, Rebalancing
from ottla.client.record_buffer import Position, place_of
from ottla.client.records import ConsumerRecord, TopicPartition
from ottla.client.serialization import DeserializerInput

_WAIT = 0.1
"""librdkafka does not notice signals while it waits: so many seconds at most until Ctrl-C works."""
_POLL_INTERVAL = 1.0
"""librdkafka is asked for events at least so often while records are handed out."""


class _Closed:
    """In place of librdkafka's consumer when it is closed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, _: str) -> NoReturn:
        raise ClosedError(f"{self._name} cannot be used any more")


class Consumer(Rebalancing):
    def __init__(
        self,
        *topics: str | re.Pattern[str],
        bootstrap_servers: str | Sequence[str],
        group_id: str | None = None,
        delivery: Delivery = "at-least-once",
        commit: CommitMode | None = None,
        commit_interval: float = 5.0,
        start: Start = "earliest",
        key_deserializer: DeserializerInput | None = None,
        value_deserializer: DeserializerInput | None = None,
        on_bad_record: OnBadRecord = "raise",
        interceptors: Sequence[ConsumerInterceptor] = (),
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
        group_protocol: GroupProtocol = "classic",
        group_instance_id: str | None = None,
        client_id: str | None = None,
        batch_size: int = 500,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`topics` are names or compiled regular expressions; leave them out for `subscribe` or `assign`.

        `start` is where a group without a commit begins. `config` has further keys of librdkafka by their
        names. `batch_size` is how many records are read ahead at most. docs/client/consumer.md explains all
        of them.
        """
        mode = commit_mode(delivery, commit)
        if group_id is None and (topics or delivery != "at-least-once" or group_instance_id):
            raise ConfigurationError("a consumer that subscribes, or that commits, needs a group_id")
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}: it must be at least 1")
        config = librdkafka_config(
            bootstrap_servers=bootstrap_servers,
            group_id=group_id or f"ottla-{uuid.uuid4().hex}",
            group_instance_id=group_instance_id,
            group_protocol=group_protocol,
            start=start,
            client_id=client_id,
            delivery=delivery,
            config=config or {},
        )
        self._reader = RecordReader(key_deserializer, value_deserializer, interceptors, on_bad_record)
        self._dead_letters = on_bad_record if isinstance(on_bad_record, DeadLetters) else None
        if self._dead_letters is not None:
            self._dead_letters.connect(config, group_id)
        self._batch_size = batch_size
        self._polled = self._tick_at = 0.0
        self._stopped = self._closed = False
        committer = Committer(group_id, mode, commit_interval, self._reader.committed)
        own = {"on_commit": committer.answered, "error_cb": self._on_error, "logger": LIBRDKAFKA_LOG}
        consumer = make_client(confluent_kafka.Consumer, {**config, **own}, ARGUMENTS)
        callbacks = on_assign, on_revoke, on_lost
        super().__init__(consumer, config, group_id, delivery, committer, callbacks)
        process_life.opened(self)
        if topics:
            self.subscribe(*topics)

    def __repr__(self) -> str:
        state = (
            "closed" if self._closed else ", ".join(f"{t}-{p}" for t, p in sorted(self._assigned)) or "idle"
        )
        return f"<Consumer {self.group_id or 'without a group'}: {state}>"

    # -- life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stop(self) -> None:
        """End the loops over this consumer, after the record that they are at; any thread or signal may ask
        for it."""
        self._stopped = True

    def close(self) -> None:
        """Commit what is finished, leave the group, release everything."""
        if self._closed:
            return
        self._closed = True
        try:
            self._committer.revoked(self._consumer, self._buffer.positions())
        finally:
            process_life.closed(self)
            self._consumer.close()
            self._consumer = cast(confluent_kafka.Consumer, _Closed(repr(self)))
            self._buffer.settled += 1  # a loop that is at its records ends
            self._reader.close()
            if self._dead_letters is not None:
                self._dead_letters.close()

    def __del__(self) -> None:
        # librdkafka would wait for ever for an answer to a rebalance that nobody can give any more.
        if hasattr(self, "_consumer") and not self._closed:
            LOG.warning("%r was not closed: use it in a `with` statement", self)
            try:
                self.close()
            except ClientError as error:
                LOG.error("%s", error)

    def abandon(self) -> None:
        """This process was forked from that of the consumer: it is of no use here."""
        self._closed = self._stopped = True

    # -- reading ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records one by one, for ever: it waits for the next one until `stop()` or Ctrl-C."""
        buffer, clock = self._buffer, time.monotonic
        while self._advance(self._batch_size, None):
            records, first, settled = buffer.records, buffer.finished, buffer.settled
            buffer.out = 1
            for buffer.finished, record in enumerate(records[first:] if first else records, first):
                yield record
                if buffer.records is not records or buffer.settled != settled:
                    break  # also by a commit, or a poll, inside the loop
                if clock() >= self._tick_at or self._stopped:
                    break
            del records  # before the next ones are read: see ReceivedRecords

    def poll(self, timeout: float | None = None) -> ConsumerRecord | None:
        """The next record, or None after `timeout` seconds; without a timeout it waits until `stop()`."""
        if not self._advance(self._batch_size, timeout):
            return None
        return self._buffer.take(1)[0]

    def fetch(self, max_records: int | None = None, timeout: float | None = None) -> Sequence[ConsumerRecord]:
        """At least one record and at most `max_records` (`batch_size`), or none after `timeout` seconds."""
        size = max_records or self._batch_size
        return self._buffer.take(size) if self._advance(size, timeout) else []

    def batches(self, max_records: int | None = None) -> Iterator[Sequence[ConsumerRecord]]:
        """Records, several at a time, for ever; a batch is finished when the next one is asked for."""
        while records := self.fetch(max_records):
            yield records
            del records

    def _advance(self, limit: int, timeout: float | None) -> bool:
        """Everything that was handed out is finished. Wait until there are records: False if none came."""
        if self._closed:
            raise ClosedError(f"{self!r} cannot be read from")
        if self._in_callback:
            raise ClientError("a rebalance callback cannot read: records come when it has returned")
        if self._in_doubt:
            self.rewind_to_committed()
        buffer = self._buffer
        buffer.settle()
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        while not self._stopped:
            self._tick(now)
            if buffer.records:
                return True
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            wait = _WAIT if deadline is None else min(_WAIT, max(0.0, deadline - now))
            self._read(limit, min(wait, max(0.0, self._tick_at - now)))
            if buffer.records:
                return True
            buffer.settle()
            now = time.monotonic()
            if deadline is not None and now >= deadline and self._error is None:
                return False
        return False

    def _tick(self, now: float) -> None:
        """Commit if it is time, and let librdkafka do what it has to, also while records wait in the
        buffer."""
        if (not self._buffer.records or now >= self._tick_at) and self._committer.is_due(now):
            self._committer.batch_finished(self._consumer, self._buffer.positions(), now)
        if self._buffer.records and now >= self._polled + _POLL_INTERVAL:
            self._read(1, 0.0)
        self._tick_at = min(self._committer.next_due(now), max(self._polled, now) + _POLL_INTERVAL)

    def _read(self, limit: int, wait: float) -> None:
        if self._gap:
            self._close_gap()
        messages = self._raw
        if not messages:
            self._gap = True  # an exception of a signal's handler can come between these lines
            self._polled = time.monotonic()
            messages = self._messages(limit, wait)
            self._raw = messages
            self._gap = False
        if not messages:
            return
        ends = self._ends_of(messages)
        records, used = self._reader.read(messages)
        if used < len(messages):
            ends = self._ends_of(messages[:used])
        self._gap = True
        self._raw = messages[used:]
        self._buffer.add(records, ends)
        self._gap = False
        if self.delivery == "at-most-once":
            self._commit_first()

    def _commit_first(self) -> None:
        """At most once: nothing is handed out before the broker knows that it will not be asked for again."""
        first: dict[TopicPartition, int] = {}
        for record in self._buffer.records[self._buffer.finished + self._buffer.out :]:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        try:
            self._committer.commit(self._consumer, self._buffer.read(), wait=True)
        except ClientError as error:
            LOG.warning("%s; the records were not handed out and are read again", error)
            self._buffer.forget(first)
            self._raw = [each for each in self._raw if place_of(each) not in first]
            for partition, offset in first.items():
                if partition in self._assigned:
                    self._seek(partition, offset)

    # -- commits ------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        """Commit these offsets (of the next records to read), or those behind all records that were handed
        out.

        With `wait=False` it returns at once, and the outcome is for `on_commit` of the interceptors.
        """
        if self._closed:
            raise ClosedError(f"{self!r} cannot commit any more")
        if self.group_id is None:
            raise ConfigurationError("a consumer without a group_id cannot commit")
        if self.delivery == "exactly-once":
            raise ConfigurationError("an exactly-once consumer commits with producer.transaction(consumer)")
        if offsets is not None:
            positions = {TopicPartition(*name): Position(offset) for name, offset in offsets.items()}
        else:
            self._buffer.settle()
            positions = self._buffer.positions()
        self._committer.commit(self._consumer, positions, wait=wait)
