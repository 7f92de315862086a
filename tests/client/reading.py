"""All records of a topic, read with confluent-kafka."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, TopicPartition

PATIENCE = 60.0


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        found: list[Message] = []
        ends: set[int | None] = set()
        while len(ends) < len(partitions):
            message = consumer.poll(PATIENCE)
            assert message is not None, f"the end of {topic} did not come"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.name() == "_PARTITION_EOF", error
                ends.add(message.partition())
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition() or 0, each.offset() or 0))
