"""What a pool does with a record whose handler failed: again, to a retry topic, to the dead letters, skip or
stop.

A record is done when it is safe elsewhere: writing it to a retry topic or to the dead letters is tried until
it succeeds, without running the handler again. The attempts in a retry topic are counted on in a header.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ottla.client.configuration import LOG
from ottla.client.consumer import Consumer
from ottla.client.dead_letters import ATTEMPTS, DeadLetters, Forwarder, explained, headers_of
from ottla.client.errors import ClientError, HandlerError
from ottla.client.pool_core import Work
from ottla.client.records import ConsumerRecord, Message
from ottla.client.retries import Retry, RetryTopic

OnFailure = Literal["stop", "skip"]
_FORWARDING = Retry(first=1.0, longest=30.0)


@dataclass(slots=True)
class Entry:
    """A record of a pool with the message it was made of; the record is None if it is to be skipped."""

    record: ConsumerRecord | None
    message: Message
    error: BaseException | None = None
    """The handler is through with it, but it could not be written elsewhere yet."""
    forwards: int = 0


class Failures:
    def __init__(
        self,
        consumer: Consumer,
        retry: Retry,
        retry_topics: Sequence[RetryTopic],
        dead_letters: DeadLetters | None,
        on_failure: OnFailure,
    ) -> None:
        self._group = consumer.group_id
        self._retry = retry
        self._topics = list(retry_topics)
        self._dead_letters = dead_letters
        self._on_failure = on_failure
        self._closes_letters = dead_letters is not None and dead_letters is not consumer._dead_letters
        self._random = random.Random()
        self._forwarder = Forwarder(consumer.config) if retry_topics else None
        if self._forwarder is not None:
            for each in retry_topics:
                self._forwarder.check(each.topic)
        if dead_letters is not None:
            dead_letters.connect(consumer.config, consumer.group_id)

    def failed(self, work: Work, error: BaseException) -> float | None:
        """Seconds until the next attempt, or None when the record is done. Raises when the pool is to
        stop."""
        entry: Entry = work.item
        message = entry.message
        place = f"{message.topic()}-{message.partition()}, offset {message.offset()}"
        if entry.error is None:
            pause = self._retry.pause(work.attempts, error, self._random)
            if pause is not None:
                LOG.warning(
                    "attempt %d at %s failed: %s; the next one in %.3g s",
                    work.attempts,
                    place,
                    _text(error),
                    pause,
                )
                return pause
        else:
            error = entry.error
        if work.lost:
            return None  # its next owner works on it
        attempts = work.attempts - entry.forwards + int(headers_of(message).get(ATTEMPTS) or b"0")
        reason = _text(error)
        try:
            topic = self._put_away(message, error, reason, attempts)
        except ClientError as failure:
            entry.error = error
            entry.forwards += 1
            pause = _FORWARDING.backoff(entry.forwards)
            LOG.error("%s of %s; again in %.3g s", failure, place, pause)
            return pause
        if topic is not None:
            LOG.error("%s failed after %d attempts: %s; written to %s", place, attempts, reason, topic)
        elif self._on_failure == "skip":
            LOG.error("%s failed after %d attempts: %s; skipped", place, attempts, reason)
        else:
            raise HandlerError(
                f"{place} failed after {attempts} attempts: {reason}",
                topic=message.topic() or "",
                partition=message.partition() or 0,
                offset=message.offset() or 0,
            ) from error
        return None

    def _put_away(self, message: Message, error: BaseException, reason: str, attempts: int) -> str | None:
        """Write it to the topic that is next, and say which; None if there is none."""
        steps = {each.topic: number for number, each in enumerate(self._topics, 1)}
        step = steps.get(message.topic() or "", 0)
        if self._forwarder is not None and step < len(self._topics):
            target = self._topics[step]
            due = int((time.time() + target.delay) * 1000)
            headers = explained(
                message, reason=reason, error=error, attempts=attempts, group=self._group, due=due
            )
            self._forwarder.send(target.topic, message, headers)
            return target.topic
        if self._dead_letters is not None:
            return self._dead_letters.send(message, error, reason=reason, attempts=attempts)
        return None

    def close(self) -> None:
        if self._forwarder is not None:
            self._forwarder.close()
        if self._dead_letters is not None and self._closes_letters:
            self._dead_letters.close()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
