"""Transactions of the Java client: 4.3 speaks the second protocol (KIP-890, part 2), 3.9 the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from bench.peers.maven import require, resolve

from clients.programs import HERE, Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]

CHECKS = (
    "commit and abort",
    "an open transaction is invisible",
    "a second instance fences the first",
    "offsets count with the transaction",
    "each transaction has its own epoch",
    "go on after a transaction ran out of time",
    "an administrator fences a producer",
)


def _command(version: str) -> list[str]:
    require("java")
    jars = resolve(
        f"kafka-clients-{version}",
        f"org.apache.kafka:kafka-clients:{version}",
        "org.slf4j:slf4j-nop:1.7.36",
    )
    return ["java", "-Xmx512m", "-cp", f"{jars}/*", str(HERE / "java" / "Transactions.java")]


PROGRAMS = {
    version: Program(f"java-transactions-{version}", CHECKS, partial(_command, version))
    for version in ("4.3.1", "3.9.1")
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("version", PROGRAMS)
def test_transactions_of_the_java_client_pass_their_checks(
    version: str, check: str, results: Callable[[Program], dict[str, dict[str, Any]]]
) -> None:
    result = results(PROGRAMS[version])[check]
    assert result["ok"], result["detail"]
