"""The Java client in groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench.peers.maven import require, resolve

from clients.programs import HERE, Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]

VERSION = "4.3.1"


def _command() -> list[str]:
    require("java")
    jars = resolve(
        f"kafka-clients-{VERSION}",
        f"org.apache.kafka:kafka-clients:{VERSION}",
        "org.slf4j:slf4j-nop:1.7.36",
    )
    return ["java", "-Xmx512m", "-cp", f"{jars}/*", str(HERE / "java" / "ConsumerProtocol.java")]


PROGRAM = Program(
    f"java-consumer-protocol-{VERSION}",
    (
        "share the partitions",
        "commit and go on",
        "follow new partitions",
        "follow an expression",
        "refuse a bad expression",
        "a static member comes back",
        "describe the group",
        "take over from the classic protocol",
    ),
    _command,
)


@pytest.mark.parametrize("check", PROGRAM.checks)
def test_java_members_of_the_consumer_protocol_pass_their_checks(
    check: str, results: Callable[[Program], dict[str, dict[str, Any]]]
) -> None:
    result = results(PROGRAM)[check]
    assert result["ok"], result["detail"]
