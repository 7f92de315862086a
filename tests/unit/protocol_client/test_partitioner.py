"""Records go to the partition where every other Kafka client looks for them."""

from __future__ import annotations

import random

import pytest

from ottla.protocol_client.partitioner import STICKY_BYTES, Partitioner, murmur2, partition_of

# What Java's Utils.murmur2 gives, as unsigned numbers.
JAVA = {
    b"21": 3321034988,
    b"foobar": 3504634814,
    b"a-little-bit-long-string": 3308985760,
    b"a-little-bit-longer-string": 2808662467,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": 4236069325,
    b"abc": 479470107,
    b"": 275646681,
}


@pytest.mark.parametrize("data", JAVA)
def test_the_hash_is_javas(data: bytes) -> None:
    assert murmur2(data) == JAVA[data]


def test_the_hash_is_that_of_another_python_client_for_all_lengths() -> None:
    from kafka.partitioner.default import murmur2 as theirs

    rng = random.Random(1)
    for length in range(130):
        data = rng.randbytes(length)
        assert murmur2(data) == theirs(data) & 0xFFFFFFFF, data


def test_a_key_always_goes_to_the_same_partition() -> None:
    partitioner = Partitioner(7)
    assert {partitioner.choose(b"user-42", 10) for _ in range(100)} == {partition_of(b"user-42", 7)}


def test_a_key_keeps_its_partition_when_that_has_no_leader() -> None:
    home = partition_of(b"user-42", 3)
    others = [p for p in range(3) if p != home]
    assert Partitioner(3, usable=others).choose(b"user-42", 10) == home


def test_an_empty_key_is_a_key() -> None:
    assert Partitioner(5).choose(b"", 10) == partition_of(b"", 5)


def test_records_without_a_key_fill_one_partition_and_then_the_next() -> None:
    partitioner = Partitioner(3, start=1)
    chosen = [partitioner.choose(None, STICKY_BYTES // 4) for _ in range(12)]
    assert chosen == [1] * 4 + [2] * 4 + [0] * 4


def test_records_without_a_key_avoid_partitions_without_a_leader() -> None:
    partitioner = Partitioner(4, usable=[1, 3])
    assert {partitioner.choose(None, STICKY_BYTES) for _ in range(10)} == {1, 3}
