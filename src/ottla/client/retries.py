"""How often and when a record whose handler failed is tried again: at once in its place, then from retry
topics.

`Retry` is the policy in place: the record keeps its place, and the records of its key wait behind it, for a
pause that doubles. A `RetryTopic` takes the record out of the way: it is written there and comes back after
the topic's delay, while the records behind it go on. So the order of its key is given up from there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ottla.client.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Retry:
    """`attempts` in all, the first one included. Pauses grow from `first` seconds by `factor` up to
    `longest`.

    Each pause is shortened by a random part of at most `jitter`, so that records that failed together do not
    come back together. A handler's error of a class in `never` is not worth a second attempt.
    """

    attempts: int = 5
    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.25
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"a record needs at least one attempt, not {self.attempts}")
        if self.first < 0 or self.longest < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"these pauses cannot be: {self}")

    def pause(self, attempts: int, error: BaseException, source: random.Random) -> float | None:
        """Seconds until the next attempt after so many, or None if there is none."""
        if attempts >= self.attempts or isinstance(error, self.never):
            return None
        return self.backoff(attempts) * (1 - self.jitter * source.random())

    def backoff(self, attempts: int) -> float:
        """The pause after so many attempts, without its random part."""
        # More than 64 doublings end at the longest pause anyway, and floats do not go on for ever.
        return min(self.longest, self.first * self.factor ** min(attempts - 1, 64))


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """A topic whose records are worked on `delay` seconds after they were written there."""

    topic: str
    delay: float

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ConfigurationError(f"the delay of {self.topic} must be above 0, not {self.delay:g}")
