"""`ottla produce` and `ottla consume` carry records through a real broker as they promise."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.command import LIMIT, Command


@pytest.fixture
def ottla(bootstrap: str) -> Command:
    return Command(bootstrap)


def records_of(ottla: Command, topic: str, *options: str) -> list[dict[str, Any]]:
    """By partition: partitions that different brokers lead come in any order."""
    found = [json.loads(line) for line in ottla.ok("consume", topic, "--json", *options).lines]
    return sorted(found, key=lambda record: record["partition"])


def test_lines_come_back_in_order(ottla: Command, topic: str) -> None:
    produced = ottla.ok("produce", topic, input="hello\n\nwörld\nlast without an end")
    assert produced.out == ""
    assert produced.err.startswith("4 records, 30 B in ")
    consumed = ottla.ok("consume", topic)
    assert consumed.lines == ["hello", "", "wörld", "last without an end"]
    assert consumed.err == ""


def test_empty_input_produces_no_records(ottla: Command, topic: str) -> None:
    assert ottla.ok("produce", topic).err.startswith("0 records, 0 B in ")
    assert ottla.ok("consume", topic).out == ""


@pytest.mark.parametrize(
    ("codec", "acks"),
    [
        ("none", "all"),
        ("none", "1"),
        ("none", "0"),
        ("gzip", "all"),
        ("snappy", "1"),
        ("lz4", "0"),
        ("zstd", "all"),
    ],
)
def test_records_pass_with_every_codec_and_acks_level(
    ottla: Command, topic: str, codec: str, acks: str
) -> None:
    lines = [f"line {number} " + "x" * (number % 100) for number in range(2000)]
    ottla.ok("produce", topic, "--compression", codec, "--acks", acks, input="\n".join(lines))
    deadline = time.monotonic() + LIMIT
    while True:
        found = ottla.ok("consume", topic).lines
        # Otherwise the followers may not have them yet.
        if acks == "all" or len(found) == len(lines) or time.monotonic() > deadline:
            break
    assert found == lines


def test_json_output_of_consume_can_be_produced_again(ottla: Command, make_topic: Callable[..., str]) -> None:
    first, second = make_topic(3), make_topic(3)
    given = [
        {"key": "k1", "value": "v1", "headers": {"a": "1"}, "timestamp": 1700000000000, "partition": 2},
        {"key": None, "value": None, "timestamp": 1700000000001, "partition": 0},
        {"key_base64": "AP8=", "value": {"nested": [1, 2]}, "timestamp": 1700000000002, "partition": 1},
    ]
    ottla.ok("produce", first, "--format", "json", input="\n".join(map(json.dumps, given)))
    found = {r["partition"]: r for r in records_of(ottla, first)}
    assert found[2] == {
        "topic": first,
        "partition": 2,
        "offset": 0,
        "timestamp": 1700000000000,
        "key": "k1",
        "value": "v1",
        "headers": [{"key": "a", "value": "1"}],
    }
    assert found[0]["key"] is None
    assert found[0]["value"] is None
    assert (found[1]["key_base64"], found[1]["value"]) == ("AP8=", '{"nested":[1,2]}')
    copied = ottla.ok("consume", first, "--format", "json").out
    ottla.ok("produce", second, "--format", "json", input=copied)
    assert [r | {"topic": first} for r in records_of(ottla, second)] == records_of(ottla, first)


def test_a_topic_can_be_copied_into_one_with_fewer_partitions(
    ottla: Command, make_topic: Callable[..., str]
) -> None:
    first, second = make_topic(3), make_topic(1)
    ottla.ok("produce", first, "--partition", "2", input="v\n")
    copied = ottla.ok("consume", first, "--json").out
    refused = ottla("produce", second, "--format", "json", input=copied)
    assert refused.code == 1
    assert refused.err.splitlines()[1:] == [
        f"error: stdin, line 1: topic '{second}' has no partition 2, only 0",
        "       --any-partition chooses the partition by key instead.",
    ]
    ottla.ok("produce", second, "--format", "json", "--any-partition", input=copied)
    assert ottla.ok("consume", second).lines == ["v"]


def test_keys_from_lines_go_to_their_partitions(ottla: Command, make_topic: Callable[..., str]) -> None:
    from ottla.protocol_client.partitioner import partition_of

    topic = make_topic(5)
    ottla.ok("produce", topic, "--key-separator", ":", input="".join(f"key-{i}:v{i}\n" for i in range(50)))
    found = records_of(ottla, topic)
    assert len(found) == 50
    for record in found:
        assert record["partition"] == partition_of(str(record["key"]).encode(), 5)
        assert str(record["value"]) == str(record["key"]).replace("key-", "v")


def test_text_output_shows_the_requested_columns(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, "--key", "k", "--header", "h=1", input="v\n")
    line = ottla.ok("consume", topic, "--keys", "--headers", "--offsets", "--timestamps").out
    when, where, headers, key, value = line.rstrip("\n").split("\t")
    assert when.endswith("+00:00")
    assert (where, headers, key, value) == ("0:0", "h=1", "k", "v")
    assert ottla.ok("consume", topic, "--format", "key-value", "--key-separator", "=").out == "k=v\n"
    assert ottla.ok("consume", topic, "--format", "hex", "--keys").out == "6b\t76\n"


def test_binary_values_pass_unchanged(ottla: Command, topic: str) -> None:
    data = bytes(b for b in range(256) if b not in (10, 13))
    ottla.ok("produce", topic, input=data + b"\n")
    assert (
        ottla.ok("consume", topic, "--format", "value").out.encode("utf-8", "surrogateescape") == data + b"\n"
    )


def test_input_can_be_hex_or_base64(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, "--format", "hex", input="00ff0a\n")
    ottla.ok("produce", topic, "--format", "base64", input="AP8K\n")
    assert ottla.ok("consume", topic, "--format", "hex").lines == ["00ff0a", "00ff0a"]


def test_an_empty_value_can_be_a_tombstone(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, "--key-separator", ":", "--empty-as-null", input="gone:\n")
    (record,) = records_of(ottla, topic)
    assert (record["key"], record["value"]) == ("gone", None)


def test_files_are_read_instead_of_stdin(ottla: Command, topic: str, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.txt").write_text(f"file {number}\n")
    ottla.ok("produce", topic, "--file", str(tmp_path / "1.txt"), "--file", str(tmp_path / "2.txt"))
    assert ottla.ok("consume", topic).lines == ["file 1", "file 2"]
    missing = ottla("produce", topic, "--file", str(tmp_path / "1.txt"), "--file", str(tmp_path / "3.txt"))
    assert missing.err.startswith("1 record, ")
    assert missing.code == 1
    assert (
        missing.err.splitlines()[-1] == f"error: cannot read {tmp_path / '3.txt'}: No such file or directory"
    )


def test_the_summary_can_be_json(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, input="0\n")
    summary = ottla.ok("produce", topic, "--json", input="1\n2\n").document
    assert summary["topic"] == topic
    assert summary["records"] == 2
    assert summary["partitions"] == {"0": {"first_offset": 1, "last_offset": 2}}


def test_an_invalid_line_is_reported_and_the_lines_before_it_are_written(ottla: Command, topic: str) -> None:
    bad = ottla(
        "produce",
        topic,
        "--format",
        "json",
        input='{"value": "a"}\n{"value": "b"}\nnonsense\n{"value": "c"}\n',
    )
    assert bad.code == 1
    assert bad.err.splitlines()[0].startswith("2 records, 2 B in ")
    assert bad.err.splitlines()[1].startswith("error: stdin, line 3: not JSON")
    assert ottla.ok("consume", topic).lines == ["a", "b"]


def test_a_record_too_large_for_the_topic_is_named(ottla: Command, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1, {"max.message.bytes": "2000"})
    lines = ["x" * 500] * 10 + ["y" * 5000] + ["z"]
    refused = ottla("produce", topic, input="\n".join(lines))
    assert refused.code == 1
    assert "error: record 11 refused" in refused.err
    assert "MESSAGE_TOO_LARGE" in refused.err
    assert f"ottla topic alter {topic} --set max.message.bytes=N" in refused.err


def test_small_limits_split_large_batches(ottla: Command, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1, {"max.message.bytes": "3000"})
    lines = [f"{number} " + "x" * 400 for number in range(100)]
    ottla.ok("produce", topic, input="\n".join(lines))
    assert ottla.ok("consume", topic).lines == lines


def test_a_large_input_is_written_completely(ottla: Command, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    lines = [f"{number:06d} " + "payload " * 20 for number in range(60_000)]
    ottla.ok("produce", topic, "-z", "lz4", input="\n".join(lines))
    assert sorted(ottla.ok("consume", topic, "--format", "value").lines) == lines


# Where reading starts and ends


@pytest.fixture
def hundred(ottla: Command, topic: str) -> str:
    """A topic whose record N has the timestamp 1700000000000 + N * 1000."""
    lines = (json.dumps({"value": f"{n}", "timestamp": 1700000000000 + n * 1000}) for n in range(100))
    ottla.ok("produce", topic, "--format", "json", input="\n".join(lines))
    return topic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(100)),
        (["--from", "beginning"], range(100)),
        (["--from", "end"], []),
        (["--offset", "97"], [97, 98, 99]),
        (["--offset", "100"], []),
        (["--offset", "-2"], [98, 99]),
        (["--offset", "-500", "--count", "1"], [0]),
        (["--count", "3"], [0, 1, 2]),
        (["--from", "1700000095000"], range(95, 100)),
        (["--from", "2023-11-14T22:14:58"], [98, 99]),
        (["--from", "2023-11-14T22:14:58.001Z"], [99]),
        (["--from", "-1h"], []),
        (["--partition", "0", "--offset", "99"], [99]),
        (["--isolation", "uncommitted", "--offset", "99"], [99]),
    ],
)
def test_consume_starts_at_the_requested_position(
    ottla: Command, hundred: str, options: list[str], expected: list[int]
) -> None:
    assert ottla.ok("consume", hundred, *options).lines == [str(n) for n in expected]


def test_an_unknown_offset_or_partition_is_an_error_that_names_the_valid_range(
    ottla: Command, hundred: str
) -> None:
    outside = ottla("consume", hundred, "--offset", "101")
    assert outside.code == 1
    assert f"offset 101 is not in partition 0 of '{hundred}', which holds 0 to 99" in outside.err
    missing = ottla("consume", hundred, "--partition", "3")
    assert missing.code == 1
    assert f"topic '{hundred}' has no partition 3, only 0" in missing.err


def test_following_prints_records_as_they_come(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, input="before\n")
    with ottla.start("consume", topic, "--follow") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"before\n"
        ottla.ok("produce", topic, input="after\n")
        assert following.stdout.readline() == b"after\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(LIMIT) == 130
        assert following.stderr is not None
        assert following.stderr.read() == b""


def test_following_ends_after_the_count(ottla: Command, topic: str) -> None:
    with ottla.start("consume", topic, "-f", "-n", "2", "--from", "beginning") as following:
        ottla.ok("produce", topic, input="1\n2\n3\n")
        assert following.communicate(timeout=LIMIT) == (b"1\n2\n", b"")
        assert following.returncode == 0


def test_a_closed_output_pipe_is_not_an_error(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, input="x" * 100 + "\n" + "line\n" * 50_000)
    with ottla.start("consume", topic) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        consuming.stdout.readline()
        consuming.stdout.close()
        assert consuming.wait(LIMIT) == 0
        assert consuming.stderr.read() == b""


def test_slow_input_is_sent_as_it_arrives(ottla: Command, topic: str) -> None:
    with ottla.start("produce", topic, stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        for number in range(3):
            producing.stdin.write(f"{number}\n".encode())
            producing.stdin.flush()
            deadline = time.monotonic() + LIMIT
            while len(ottla.ok("consume", topic).lines) <= number:
                assert time.monotonic() < deadline, "a line that was written did not arrive"
        producing.stdin.close()
        assert producing.wait(LIMIT) == 0


def test_an_interrupt_sends_what_was_read_and_reports(ottla: Command, topic: str) -> None:
    with ottla.start("produce", topic, stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        assert producing.stderr is not None
        producing.stdin.write(b"one\ntwo\n")
        producing.stdin.flush()
        deadline = time.monotonic() + LIMIT
        while len(ottla.ok("consume", topic).lines) < 2:
            assert time.monotonic() < deadline
        producing.send_signal(signal.SIGINT)
        assert producing.wait(LIMIT) == 130
        assert producing.stderr.read().decode().endswith(f" to {topic} (interrupted)\n")


def test_produce_creates_a_missing_topic_unless_no_create_is_given(ottla: Command, name: str) -> None:
    made = ottla.ok("produce", name, input="v\n")
    assert made.err.splitlines()[0] == f"Created topic {name} with 1 partition."
    assert ottla.ok("consume", name).lines == ["v"]
    assert ottla("produce", f"{name}-2", "--no-create", input="v\n").code == 1
    assert f"{name}-2" not in ottla.ok("topic", "list").out


def test_quiet_suppresses_all_messages(ottla: Command, topic: str) -> None:
    assert ottla.ok("produce", topic, "--quiet", input="v\n").err == ""
