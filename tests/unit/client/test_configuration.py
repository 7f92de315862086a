"""Arguments and keys as librdkafka's configuration, and errors that name what was meant."""

from __future__ import annotations

import subprocess
import sys

import confluent_kafka
import pytest

import ottla
from ottla.client import ConfigurationError, MissingDependencyError
from ottla.client.librdkafka_keys import KEYS
from ottla.client.producer_settings import producer_settings

OWN = {
    "acks": "all",
    "enable.idempotence": None,
    "request.timeout.ms": 30_000,
    "delivery.timeout.ms": 120_000,
    "buffer.memory": 33_554_432,
    "metadata.max.age.ms": 300_000,
    "transactional.id": None,
    "transaction.timeout.ms": 60_000,
}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("lingr.ms", "did you mean 'linger.ms'?"),
        ("linger_ms", "it is written 'linger.ms'"),
        ("buffer.memory", "use the argument buffer_memory="),
        ("max.blok.ms", "did you mean the argument max_block_ms=?"),
        ("xyzzy", "'xyzzy' is no key of librdkafka"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(key: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ottla.Producer(config={key: 1})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"acks": "some"},
        {"acks": 2},
        {"compression_type": "rar"},
        {"linger_ms": -1},
        {"acks": 1, "enable_idempotence": True},
        {"bootstrap_servers": ""},
        {"partitioner": "nearest"},
        {"value_serializer": "yaml"},
        {"config": {"error_cb": 7}},
    ],
)
def test_a_value_that_cannot_be_is_refused_when_the_producer_is_made(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ottla.Producer(**arguments)  # type: ignore[arg-type]


def test_topics_in_a_list_are_refused_with_how_to_write_them() -> None:
    with pytest.raises(ConfigurationError, match="not a list; several are given one by one"):
        ottla.Consumer(["a", "b"], bootstrap_servers="127.0.0.1:1", group_id="g")  # type: ignore[arg-type]


def test_every_key_in_the_table_is_one_of_librdkafka() -> None:
    for key in KEYS:
        try:
            confluent_kafka.Producer({"logger": None, key: "\x01"})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as failure:
            assert "No such configuration property" not in str(failure), key


def test_idempotence_is_on_unless_acks_say_otherwise() -> None:
    assert producer_settings("b", None, OWN, None)["enable.idempotence"] is True
    assert producer_settings("b", None, OWN | {"acks": -1}, None)["enable.idempotence"] is True
    assert producer_settings("b", None, OWN | {"acks": 1}, None)["enable.idempotence"] is False


def test_nothing_outlives_a_transaction() -> None:
    settings = producer_settings(
        "b", None, OWN | {"transactional.id": "t", "transaction.timeout.ms": 5_000}, None
    )
    assert (settings["delivery.timeout.ms"], settings["socket.timeout.ms"]) == (5_000, 4_900)
    ottla.Producer(transactional_id="t", transaction_timeout_ms=5_000).close()


def test_a_key_of_librdkafka_wins_over_an_argument_and_servers_may_be_a_list() -> None:
    settings = producer_settings(["a:1", "b:2"], "me", OWN, {"acks": 1, "client.id": "you"})
    assert (settings["acks"], settings["client.id"], settings["bootstrap.servers"]) == (1, "you", "a:1,b:2")


def test_a_missing_confluent_kafka_is_an_error_with_the_command_to_run() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "import ottla\n"
        "try: ottla.Producer\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == (
        "MissingDependencyError ottla's clients need the package confluent-kafka: "
        'pip install "ottla[client]"'
    )
    assert issubclass(MissingDependencyError, ImportError)
