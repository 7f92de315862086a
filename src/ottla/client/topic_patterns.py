"""Names and regular expressions of topics as librdkafka takes them.

librdkafka knows an expression by its leading "^". In the classic protocol it matches by itself, with POSIX
extended expressions; in the new one the broker does, with RE2. A pattern must match the whole name, as in
Java's client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ottla.client.errors import ConfigurationError

_NOT_POSIX = re.compile(r"\\[dDsSwWbBAZ]|\(\?|[*+?}][?+]")


def subscription(topics: Iterable[str | re.Pattern[str]], *, posix: bool) -> list[str]:
    names = []
    for topic in topics:
        if isinstance(topic, re.Pattern):
            if topic.flags & ~re.UNICODE:
                raise ConfigurationError(f"flags do not go to the broker: {topic!r}")
            if posix and (found := _NOT_POSIX.search(topic.pattern)):
                raise ConfigurationError(
                    f"{found[0]!r} in {topic.pattern!r} is not in POSIX extended regular expressions, which "
                    f"librdkafka has; write [0-9] for \\d, or use group_protocol='consumer'"
                )
            names.append(f"^({topic.pattern.removeprefix('^').removesuffix('$')})$")
        elif not isinstance(topic, str):
            raise ConfigurationError(
                f"a topic is a name or a compiled pattern, not a {type(topic).__name__}; several are given "
                "one by one, as in Consumer('orders', 'returns', ...)"
            )
        elif not topic or topic.startswith("^"):
            raise ConfigurationError(
                f"{topic!r} is no topic: give a compiled pattern for a regular expression"
            )
        else:
            names.append(topic)
    if not names:
        raise ConfigurationError("name at least one topic")
    return names
