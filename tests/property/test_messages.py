"""Every declared message in every version: our bytes are those that Kafka's own schemas give, both ways."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from effort import examples
from fuzz.random_messages import Message, messages, random_message, versions_of
from ottla.protocol.apis import APIS, FIRST_OWN
from ottla.protocol.codec import decode, encode
from ottla.protocol.schema import Request, Response
from property.message_versions import for_each_message, for_each_version
from property.oracles import kafka_python_bytes, kafka_python_knows, kio_bytes

# The first kind can be shrunk but is often dull; the second is never dull.
chance = st.randoms(use_true_random=False) | st.randoms(use_true_random=True)
few = settings(max_examples=examples(2, 800), deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Messages of our own have no oracle.
of_kafka = [cls for cls in messages() if cls.api_key < FIRST_OWN]
own = [cls for cls in messages() if cls.api_key >= FIRST_OWN]


@for_each_message(own)
@few
@given(chance)
def test_messages_round_trip(cls: Message, rng: Random) -> None:
    version = _any_version(cls, rng)
    message = random_message(rng, cls, version)
    assert decode(cls, version, memoryview(b"".join(encode(message, version)))) == message


@for_each_message(of_kafka)
@few
@given(chance)
def test_encoded_messages_equal_those_of_kio_and_kafka_python(cls: Message, rng: Random) -> None:
    version = _any_version(cls, rng)
    _compare(random_message(rng, cls, version), version)


@for_each_version(of_kafka)
def test_every_version_is_encoded_like_kio_and_kafka_python_do(cls: Message, version: int) -> None:
    rng = Random(version)
    for _ in range(examples(1, 2)):
        _compare(random_message(rng, cls, version), version)


@for_each_version(of_kafka)
def test_a_default_message_is_encoded_like_kio_and_kafka_python_do(cls: Message, version: int) -> None:
    _compare(cls(), version)


def _any_version(cls: Message, rng: Random) -> int:
    version = rng.choice(versions_of(cls))
    note(f"version {version}")
    return version


def _compare(message: Request | Response, version: int) -> None:
    ours = b"".join(encode(message, version))
    assert ours == kio_bytes(message, version)
    if kafka_python_knows(type(message)):
        assert ours == kafka_python_bytes(message, version)
    assert decode(type(message), version, memoryview(ours)) == message


def test_the_versions_are_those_that_kafka_4_3_advertises() -> None:
    table = (
        "0:0-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 "
        "18:0-4 19:2-7 20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-5 29:1-3 30:1-3 31:1-3 "
        "32:1-4 33:0-2 35:1-5 37:0-3 42:0-2 43:0-2 44:0-1 45:0-1 46:0-0 47:0-0 55:0-2 57:0-2 60:0-2 61:0-0 "
        "64:0-0 65:0-0 66:0-2 68:0-1 69:0-1 74:0-1 75:0-0"
    )
    between_brokers = "56:3-3 67:0-0"
    ours = (
        f"{api.key}:{api.advertised_min}-{api.max_version}" for api in APIS.values() if api.key < FIRST_OWN
    )
    assert sorted(ours) == sorted(f"{table} {between_brokers}".split())
