"""Where rows go: a topic is looked up, waited for, and made by the broker if it does that.

Used by tasks that write, before they can say which partition a row goes to, and by the driver.
"""

from __future__ import annotations

from ottla.pipeline.topics.links import METADATA_AGE, Link, TopicPlace
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client.wire import BrokerUnreachable, Patience

UNKNOWN_TOPIC_PATIENCE = 5.0
"""Seconds to wait for a topic that the broker may be creating."""


class WriteRefused(Exception):
    """Records that a broker will not take, however often it is asked."""


class NoSuchTopic(Exception):
    """The topic does not exist and the broker does not create it; it may be created any time."""


def find_topic(link: Link, topic: str, delivery_timeout: float) -> TopicPlace:
    """Where a topic is; lets the broker create one that is missing, if it does that."""
    patience, missing = Patience(delivery_timeout), Patience(UNKNOWN_TOPIC_PATIENCE)
    while True:
        try:
            return link.topic(topic, create=True, max_age=METADATA_AGE)
        except (ApiError, BrokerUnreachable) as error:
            unknown = isinstance(error, ApiError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if unknown and missing.left <= 0:
                raise NoSuchTopic(
                    f"topic {topic!r} does not exist, and the broker does not create it by itself "
                    "(auto.create.topics.enable)"
                ) from None
            if isinstance(error, ApiError) and not error.code.retriable:
                raise WriteRefused(f"topic {topic!r}: {error.message}") from None
            (missing if unknown else patience).pause(error)
