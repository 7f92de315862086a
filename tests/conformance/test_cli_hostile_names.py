"""Names of groups and clients are escaped by the commands that show them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import ottla.testing
from conformance.command import Command
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.records import Record, encode_batch
from raw_client import RawClient

HOSTILE = "evil\nforged  Stable  classic\r\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
LONG = HOSTILE + "x" * 20_000


@pytest.fixture(scope="module", params=[HOSTILE, LONG], ids=["hostile", "long"])
def group(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def command(group: str) -> Iterator[Command]:
    """Of a broker with one group, whose only member stays."""
    with (
        ottla.testing.broker(topics=["t"], settings={"group.initial.rebalance.delay.ms": 0}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        deadline = time.monotonic() + 30.0
        while client.call(FindCoordinatorRequest(key=group), 3).error_code:
            assert time.monotonic() < deadline, "no coordinator"
        asked = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=group, metadata=b"")],
            group_instance_id=group,
            reason=group,
        )
        joined = client.call(asked, 9)
        assert joined.error_code == 0
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=group,
            protocol_type="consumer",
            protocol_name=group,
        )
        assert client.call(sync, 5).error_code == 0
        yield Command(broker.bootstrap_servers)


def assert_harmless(screen: str, limit: int = 4_000) -> None:
    for sequence in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\nforged"):
        assert sequence not in screen
    assert "forged" in screen
    assert len(screen) < limit


@pytest.mark.parametrize("what", ["list", "describe", "explain", "delete"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_control_characters_in_group_and_client_names_are_escaped(
    command: Command, group: str, what: str, terminal: bool
) -> None:
    arguments = ["group", what] if what == "list" else ["group", what, group]
    if terminal:
        with command.at_terminal(*arguments, columns=500) as screen:
            code, text = screen.finish()
    else:
        code, text, error = command(*arguments)
        text += error
    assert code == (1 if what == "delete" else 0)  # a group that has members stays
    assert_harmless(text, limit=20_000)


def test_a_group_name_with_line_breaks_is_one_row(command: Command) -> None:
    assert len(command.ok("group", "list").lines) == 2


def test_json_output_contains_the_unescaped_name(command: Command, group: str) -> None:
    result = command.ok("group", "list", "--json")
    assert [each["group"] for each in result.document] == [group]
    assert "\x9b" not in result.out
    assert "\u202e" not in result.out


def test_records_leave_the_terminal_alone_and_go_raw_into_a_pipe(command: Command) -> None:
    data = HOSTILE.replace("\n", "").encode()
    batch = encode_batch([Record(0, 1, data, data, [(data.decode(), data)])])
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    with RawClient(command.environment["OTTLA_BOOTSTRAP"]) as client:
        client.call(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic]), 9)
    for form in ("text", "json"):
        with command.at_terminal("consume", "t", "--keys", "--headers", "--format", form) as screen:
            code, text = screen.finish()
        assert code == 0
        assert_harmless(text.replace("\u202e", ""))  # a record may turn the direction of its own text
    assert data in command("consume", "t", "--format", "value").out.encode("utf-8", "surrogateescape")
