"""`ottla group` and `ottla consume --group` do to a real broker what they say."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from conformance.command import LIMIT, Command
from ottla.protocol.messages.explain_group import ExplainGroupRequest
from ottla.protocol_client.wire import Wire


@pytest.fixture
def ottla(bootstrap: str) -> Command:
    return Command(bootstrap)


@pytest.fixture
def group(name: str) -> str:
    return name.replace("t-", "g-")


@pytest.fixture
def keeps_history(bootstrap: str) -> bool:
    with Wire(bootstrap) as wire:
        return wire.offers(ExplainGroupRequest)


def _wait(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := look()):
        assert time.monotonic() < deadline, f"no {what} within {LIMIT:g} s"
    return found


@contextmanager
def _following(ottla: Command, topic: str, group: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member that stays; told to go at the end."""
    process = ottla.start("consume", topic, "--group", group, "--follow")
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)


def _stable(ottla: Command, group: str, members: int) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        result = ottla("group", "describe", group, "--json")
        if result.code:
            return None
        found: dict[str, Any] = result.document
        ready = found["state"] == "Stable" and len(found["members"]) == members
        return found if ready else None

    found: dict[str, Any] = _wait(look, f"stable group of {members}")
    return found


def _committed(ottla: Command, group: str) -> dict[int, int]:
    (found,) = ottla.ok("group", "lag", group, "--json").document
    return {p["partition"]: p["committed"] for p in found["partitions"]}


def test_a_group_continues_from_its_committed_offset(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("produce", topic, input="".join(f"{n}\n" for n in range(10)))
    first = ottla.ok("consume", topic, "--group", group, "--count", "4")
    assert first.lines == ["0", "1", "2", "3"]
    (found,) = ottla.ok("group", "lag", group, "--json").document
    assert (found["group"], found["lag"]) == (group, 6)
    assert 0 <= found["seconds"] < LIMIT
    (row,) = found["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (4, 10, 6)
    assert ottla.ok("consume", topic, "--group", group).lines == ["4", "5", "6", "7", "8", "9"]
    (found,) = ottla.ok("group", "lag", group, "--json").document
    assert (found["lag"], found["seconds"]) == (0, 0.0)
    assert ottla.ok("consume", topic, "--group", group).lines == []


def test_lag_in_time_is_the_age_of_the_oldest_unread_record(ottla: Command, topic: str, group: str) -> None:
    hour_ago, minute_ago = (int((time.time() - back) * 1000) for back in (3600, 60))
    lines = f'{{"value": "a", "timestamp": {hour_ago}}}\n{{"value": "b", "timestamp": {minute_ago}}}\n'
    ottla.ok("produce", topic, "--format", "json", input=lines)
    ottla.ok("group", "reset-offsets", group, "--topic", topic, "--to", "earliest", "--execute")
    (found,) = ottla.ok("group", "lag", group, "--json").document
    assert 3600 <= found["seconds"] < 3600 + LIMIT
    assert found["partitions"][0]["oldest_unread"] == hour_ago
    ottla.ok("group", "reset-offsets", group, "--to", "+1", "--execute")
    (found,) = ottla.ok("group", "lag", group, "--json").document
    assert 60 <= found["seconds"] < 60 + LIMIT
    ottla.ok("group", "reset-offsets", group, "--to", "-30m", "--execute")
    assert _committed(ottla, group) == {0: 1}


def test_reset_shows_the_plan_and_changes_nothing_without_execute(
    ottla: Command, topic: str, group: str
) -> None:
    ottla.ok("produce", topic, input="a\nb\nc\n")
    ottla.ok("consume", topic, "--group", group)
    planned = ottla.ok("group", "reset-offsets", group, "--to", "1", "--topic", f"{topic}:0")
    assert planned.lines[0].split() == ["TOPIC", "PARTITION", "FROM", "TO", "BY", "NOTE"]
    assert planned.lines[1].split() == [topic, "0", "3", "1", "-2"]
    assert "dry run" in planned.err
    assert _committed(ottla, group) == {0: 3}
    done = ottla.ok("group", "reset-offsets", group, "--to", "1", "--execute", "--json").document
    assert done == {
        "group": group,
        "executed": True,
        "partitions": [{"topic": topic, "partition": 0, "from": 3, "to": 1, "note": None}],
    }
    assert _committed(ottla, group) == {0: 1}
    assert ottla.ok("consume", topic, "--group", group).lines == ["b", "c"]


def test_reset_asks_for_confirmation_at_a_terminal(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("produce", topic, input="a\nb\n")
    ottla.ok("consume", topic, "--group", group)
    for answer, code, committed in (("n", 130, 2), ("y", 0, 0)):
        with ottla.at_terminal("group", "reset-offsets", group, "--to", "earliest") as terminal:
            terminal.wait_for("[y/N]")
            terminal.type(f"{answer}\n")
            assert terminal.finish()[0] == code
        assert _committed(ottla, group) == {0: committed}


def test_reset_and_delete_are_refused_while_a_group_has_members(
    ottla: Command, make_topic: Callable[..., str], group: str, keeps_history: bool
) -> None:
    topic = make_topic(3)
    ottla.ok("produce", topic, input="a\nb\nc\n")
    with _following(ottla, topic, group):
        _stable(ottla, group, 1)
        with _following(ottla, topic, group):
            both = _stable(ottla, group, 2)
            shares = [sorted(p["partition"] for p in member["assigned"]) for member in both["members"]]
            assert sorted(shares) == [[0, 1], [2]]
            assert (both["type"], both["assignor"]) == ("classic", "range")
            assert {m["client_id"] for m in both["members"]} == {"ottla"}
            assert all(m["host"] and m["subscribed"] == [topic] for m in both["members"])
            shown = ottla.ok("group", "describe", group).out
            assert f"{topic}:0-1" in shown
            for command in (["reset-offsets", "--to", "earliest"], ["delete", "--yes"]):
                refused = ottla("group", command[0], group, *command[1:])
                assert refused.code == 1
                assert "while it has members: it has 2 (ottla)" in refused.err
        alone = _stable(ottla, group, 1)
        assert len(alone["members"][0]["assigned"]) == 3
        if keeps_history:
            told = ottla.ok("group", "explain", group, "--json").document
            assert [(r["members_before"], r["members_after"]) for r in told["rebalances"]] == [
                (2, 1),
                (1, 2),
                (0, 1),
            ]
            assert "a member left" in told["rebalances"][0]["causes"][0]
            assert len(told["rebalances"][1]["moved"]) >= 1
            assert "because a member joined" in ottla.ok("group", "explain", group).out
    listed = {row["group"]: row for row in ottla.ok("group", "list", "--json").document}
    assert (listed[group]["state"], listed[group]["members"], listed[group]["lag"]) == ("Empty", 0, 0)
    assert ottla.ok("group", "delete", group, "--yes").out == f"deleted {group}\n"
    assert group not in ottla.ok("group", "list").out


def test_explain_says_why_a_surplus_member_is_idle(
    ottla: Command, topic: str, group: str, keeps_history: bool
) -> None:
    with _following(ottla, topic, group), _following(ottla, topic, group):
        found = _stable(ottla, group, 2)
        assert sorted(len(member["assigned"]) for member in found["members"]) == [0, 1]
        if keeps_history:
            (idle,) = ottla.ok("group", "explain", group, "--json").document["rebalances"][0]["idle"]
            assert "2 members share 1 partition;" in idle["reason"]
        else:
            refused = ottla("group", "explain", group)
            assert refused.code == 1
            assert "keeps no history of rebalances" in refused.err


def test_groups_are_listed_by_state_and_type(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("produce", topic, input="a\nb\n")
    ottla.ok("consume", topic, "--group", group, "--count", "1")
    row = next(line for line in ottla.ok("group", "list").lines if line.split()[0] == group)
    assert row.split() == [group, "Empty", "classic", "0", "1"]
    assert group in ottla.ok("group", "list", "--state", "empty", "--type", "classic").out
    assert group not in ottla.ok("group", "list", "--state", "stable").out
    assert group not in ottla.ok("group", "list", "--type", "consumer").out


def test_a_similar_group_name_is_suggested(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("group", "reset-offsets", f"{group}-billing", "--topic", topic, "--to", "latest", "--execute")
    for command in (["describe"], ["lag"], ["explain"], ["delete", "--yes"], ["reset-offsets", "--to", "1"]):
        missed = ottla("group", command[0], f"{group}-biling", *command[1:])
        assert missed.code == 1, command
        assert missed.err.splitlines() == [
            f"error: there is no group '{group}-biling'",
            f"       Did you mean '{group}-billing'?",
        ]


def test_tab_completes_names_of_groups(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("group", "reset-offsets", group, "--topic", topic, "--to", "latest", "--execute")
    completed = ottla(
        "x", _OTTLA_COMPLETE="complete_bash", COMP_WORDS=f"ottla group lag {group[:8]}", COMP_CWORD="3"
    )
    assert completed.lines == [group]


@pytest.mark.parametrize(
    "arguments",
    [
        ["group"],
        ["group", "describe"],
        ["group", "reset-offsets", "g"],
        ["group", "reset-offsets", "g", "--to", "somewhere"],
        ["group", "reset-offsets", "g", "--to", "1", "--topic", "t:x"],
        ["group", "reset-offsets", "g", "--to", "1", "--execute", "--dry-run"],
        ["consume", "t", "--group", "g", "--offset", "3"],
        ["consume", "t", "--group", "g", "--partition", "0"],
    ],
)
def test_a_wrong_command_line_exits_with_2(ottla: Command, arguments: list[str]) -> None:
    wrong = ottla(*arguments)
    assert (wrong.code, wrong.out) == (2, "")
    assert "Traceback" not in wrong.err


def test_an_unreachable_broker_exits_with_3(ottla: Command) -> None:
    for command in (
        ["list"],
        ["lag"],
        ["describe", "g"],
        ["explain", "g"],
        ["reset-offsets", "g", "--to", "1"],
    ):
        missing = ottla("group", *command, "--bootstrap", "127.0.0.1:1", "--timeout", "0.1")
        assert missing.code == 3
        assert missing.err.startswith("error: cannot reach the broker at 127.0.0.1:1: connection refused")


def test_a_watch_repaints_the_terminal_until_ctrl_c(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("produce", topic, input="a\nb\n")
    ottla.ok("consume", topic, "--group", group, "--count", "1")
    with ottla.at_terminal("group", "lag", group, "--watch", "--every", "0.2") as terminal:
        terminal.wait_for(f"{group}: 1 record, ")
        terminal.wait_for("Ctrl-C ends")
        ottla.ok("produce", topic, input="c\n")
        terminal.wait_for(f"{group}: 2 records, ")
        terminal.interrupt()
        code, screen = terminal.finish()
    assert code == 130
    assert "Traceback" not in screen
    assert "\x1b[2K" in screen


def test_a_watch_into_a_pipe_prints_block_after_block(ottla: Command, topic: str, group: str) -> None:
    ottla.ok("group", "reset-offsets", group, "--topic", topic, "--to", "latest", "--execute")
    for options, wanted in ((["--json"], '[{"group"'), ([], "GROUP ")):
        process = ottla.start("group", "lag", group, "--watch", "--every", "0.1", *options)
        assert process.stdout is not None
        seen = 0
        while seen < 2:
            line = process.stdout.readline().decode()
            assert line, "it ended"
            assert "\x1b" not in line
            seen += line.startswith(wanted)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, err) == (130, b"")


def test_groups_of_the_consumer_protocol_are_shown_like_classic_groups(
    ottla: Command, make_topic: Callable[..., str], bootstrap: str, group: str, keeps_history: bool
) -> None:
    topic = make_topic(2)
    ottla.ok("produce", topic, input="a\nb\n")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "billing-7",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])

        def shared() -> dict[str, Any] | None:
            consumer.poll(0.1)
            result = ottla("group", "describe", group, "--json")
            found: dict[str, Any] | None = None if result.code else result.document
            if not found or found["state"] != "Stable" or not found["members"]:
                return None
            return found if len(found["members"][0]["assigned"]) == 2 else None

        found = _wait(shared, "stable group with both partitions assigned")
        assert found["type"] == "consumer"
        (member,) = found["members"]
        assert (member["client_id"], member["subscribed"]) == ("billing-7", [topic])
        assert [p["partition"] for p in member["assigned"]] == [0, 1]
        row = next(line for line in ottla.ok("group", "list").lines if line.split()[0] == group)
        assert row.split()[:4] == [group, "Stable", "consumer", "1"]
        refused = ottla("group", "reset-offsets", group, "--topic", topic, "--to", "latest", "--execute")
        assert refused.code == 1
        assert "while it has members: it has 1 (billing-7)" in refused.err
        if keeps_history:
            told = ottla.ok("group", "explain", group, "--json").document
            assert told["rebalances"][-1]["members_after"] == 1
            assert "a member joined" in told["rebalances"][-1]["causes"][0]
    finally:
        consumer.close()
    ottla.ok("group", "reset-offsets", group, "--topic", topic, "--to", "latest", "--execute")
    (lag,) = ottla.ok("group", "lag", group, "--json").document
    assert lag["lag"] == 0
