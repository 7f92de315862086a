"""`ottla topic` does to a real broker what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.command import Command


@pytest.fixture
def ottla(bootstrap: str) -> Command:
    return Command(bootstrap)


def test_a_topic_is_created_shown_and_deleted(ottla: Command, name: str, replicas: int) -> None:
    created = ottla.ok("topic", "create", name, "--partitions", "3", "--config", "retention.ms=60000")
    assert created.out == f"created {name}: 3 partitions, replication factor {replicas}\n"
    listed = {row["name"]: row for row in ottla.ok("topic", "list", "--json").document}
    assert listed[name]["partitions"] == 3
    assert listed[name]["replication_factor"] == replicas
    assert listed[name]["size_bytes"] == 0
    described = ottla.ok("topic", "describe", name, "--json").document
    assert described["configs"]["retention.ms"] == {"value": "60000", "source": "topic"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert all(p["leader"] is not None and p["isr"] == p["replicas"] for p in described["partitions"])
    assert len(described["id"]) == 22
    assert ottla.ok("topic", "delete", name, "--yes").out == f"deleted {name}\n"
    assert name not in ottla.ok("topic", "list").out


def test_several_topics_at_once(ottla: Command, name: str) -> None:
    names = [f"{name}-{i}" for i in range(3)]
    made = ottla.ok("topic", "create", *names, "--json").document
    assert [(m["name"], m["created"]) for m in made] == [(n, True) for n in names]
    gone = ottla.ok("topic", "delete", *names, "--yes", "--json").document
    assert [g["name"] for g in gone] == names


def test_tables_in_a_pipe_are_plain_and_aligned(
    ottla: Command, make_topic: Callable[..., str], replicas: int
) -> None:
    topic = make_topic(2)
    listed = ottla.ok("topic", "list").lines
    assert listed[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS", "SIZE"]
    row = next(line for line in listed if line.split()[0] == topic)
    assert row.split() == [topic, "2", str(replicas), "0", "B"]
    assert len(row) == len(listed[0])
    described = ottla.ok("topic", "describe", topic).out
    assert "\x1b" not in described
    assert described.splitlines()[0].split() == ["Topic", topic]
    assert described.splitlines()[-1].split()[0] == "1"


def test_describe_shows_what_was_written(ottla: Command, topic: str) -> None:
    ottla.ok("produce", topic, input="one\ntwo\nthree\n")
    (partition,) = ottla.ok("topic", "describe", topic, "--json").document["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (0, 3)
    assert partition["size_bytes"] > 60


def test_topic_configs_are_changed_and_reset(ottla: Command, topic: str) -> None:
    changed = ottla.ok(
        "topic", "alter", topic, "--set", "retention.ms=1234567", "--set", "cleanup.policy=compact"
    )
    assert changed.lines == [f"{topic}: retention.ms=1234567", f"{topic}: cleanup.policy=compact"]
    back = ottla.ok("topic", "alter", topic, "--unset", "retention.ms", "--json").document
    assert back["configs"]["retention.ms"] == {"value": "604800000", "source": "default"}
    kept = ottla.ok("topic", "describe", topic, "--json").document["configs"]
    assert kept["cleanup.policy"]["value"] == "compact"
    assert "retention.ms" not in kept


def test_partitions_are_added_by_count_or_total(ottla: Command, topic: str) -> None:
    assert (
        ottla.ok("topic", "add-partitions", topic, "2").out
        == f"{topic} has 3 partitions now, 2 of them new\n"
    )
    assert ottla.ok("topic", "add-partitions", topic, "--to", "5", "--json").document == {
        "name": topic,
        "partitions": 5,
        "added": 2,
    }
    shrunk = ottla("topic", "add-partitions", topic, "--to", "2")
    assert shrunk.code == 1
    assert "has 5 partitions already" in shrunk.err
    assert ottla("topic", "add-partitions", topic).code == 2


def test_creating_an_existing_topic_is_an_error_unless_allowed(ottla: Command, topic: str) -> None:
    again = ottla("topic", "create", topic)
    assert again.code == 1
    assert f"topic '{topic}' exists already" in again.err
    assert ottla.ok("topic", "create", topic, "--if-not-exists").out == f"{topic} exists already\n"
    allowed = ottla.ok("topic", "create", topic, "--if-not-exists", "--json").document
    assert allowed == [{"name": topic, "created": False}]


def test_delete_asks_at_a_terminal_and_requires_yes_in_a_script(ottla: Command, topic: str) -> None:
    refused = ottla("topic", "delete", topic, input="y\n")
    assert refused.code == 2
    assert "--yes" in refused.err
    with ottla.at_terminal("topic", "delete", topic) as terminal:
        terminal.wait_for("[y/N]")
        terminal.type("n\n")
        assert terminal.finish()[0] == 130
    assert topic in ottla.ok("topic", "list").out
    with ottla.at_terminal("topic", "delete", topic) as terminal:
        terminal.wait_for(f"Delete {topic} (1 partition, ")
        terminal.type("y\n")
        code, screen = terminal.finish()
    assert code == 0
    assert f"deleted {topic}" in screen
    assert topic not in ottla.ok("topic", "list").out


def test_a_similar_topic_name_is_suggested(ottla: Command, name: str) -> None:
    ottla.ok("topic", "create", f"{name}-payments")
    for command in (
        ("topic", "describe"),
        ("topic", "delete", "--yes"),
        ("topic", "alter", "--set", "retention.ms=1"),
        ("consume",),
        ("produce", "--no-create"),
    ):
        missed = ottla(*command, f"{name}-paymnts")
        assert missed.code == 1, command
        assert missed.err.splitlines() == [
            f"error: there is no topic '{name}-paymnts'",
            f"       Did you mean '{name}-payments'?",
        ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "bad/name"], "INVALID_TOPIC_EXCEPTION"),
        (["create", "{new}", "--config", "no.such.key=1"], "INVALID_CONFIG"),
        (["create", "{new}", "--config", "retention.ms=soon"], "INVALID_CONFIG"),
        (["create", "{new}", "--replication-factor", "7"], "INVALID_REPLICATION_FACTOR"),
        (["alter", "{topic}", "--set", "cleanup.policy=never"], "INVALID_CONFIG"),
    ],
)
def test_a_refusal_of_the_broker_is_printed_in_one_line(
    ottla: Command, topic: str, name: str, arguments: list[str], said: str
) -> None:
    refused = ottla("topic", *(a.format(new=name, topic=topic) for a in arguments))
    assert refused.code == 1
    assert refused.out == ""
    (line,) = refused.err.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create"],
        ["topic", "create", "t", "--partitions", "0"],
        ["topic", "create", "t", "--config", "novalue"],
        ["topic", "alter", "t"],
        ["topic", "alter", "t", "--set", "a=1", "--unset", "a"],
        ["topic", "nosuch"],
        ["topic"],
        ["nosuch"],
        ["topic", "list", "--bootstrap", "host:port"],
        ["consume", "t", "--from", "whenever"],
        ["consume", "t", "--from", "end", "--offset", "3"],
        ["produce", "t", "--key", "k", "--key-separator", ":"],
        ["produce", "t", "--compression", "rar"],
    ],
)
def test_a_wrong_command_line_exits_with_2_and_never_a_traceback(
    ottla: Command, topic: str, arguments: list[str]
) -> None:
    wrong = ottla(*(topic if a == "t" else a for a in arguments))
    assert wrong.code == 2
    assert wrong.out == ""
    assert wrong.err
    assert "Traceback" not in wrong.err


def test_an_unreachable_broker_exits_with_3_and_says_what_to_do(ottla: Command) -> None:
    for command in (["topic", "list"], ["consume", "t"], ["produce", "t"], ["topic", "create", "t"]):
        missing = ottla(*command, "--bootstrap", "127.0.0.1:1", "--timeout", "0.1")
        assert missing.code == 3
        assert missing.err.splitlines() == [
            "error: cannot reach the broker at 127.0.0.1:1: connection refused",
            "       Is the broker running? `ottla serve` starts one.",
        ]


def test_tab_completes_topic_names(ottla: Command, name: str) -> None:
    ottla.ok("topic", "create", f"{name}-a", f"{name}-b")
    completed = ottla(
        "x", _OTTLA_COMPLETE="complete_bash", COMP_WORDS=f"ottla consume {name}", COMP_CWORD="2"
    )
    assert sorted(completed.lines) == [f"{name}-a", f"{name}-b"]
    silent = ottla(
        "x",
        _OTTLA_COMPLETE="complete_bash",
        COMP_WORDS="ottla consume -b 127.0.0.1:1 x",
        COMP_CWORD="4",
    )
    assert silent.out.strip() == ""
    assert silent.err == ""
