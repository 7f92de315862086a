"""Runs `TransactionWorkload.java` against a cluster, and makes a history of what its clients did and saw."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.peers.maven import require, resolve

from transaction_history.history import (
    History,
    Key,
    LogEnd,
    OffsetRead,
    Outcome,
    Poll,
    Send,
    Source,
    Transaction,
)

SOURCE = Path(__file__).with_name("TransactionWorkload.java")
JAVA_CLIENT = "4.3.1"
END_SECONDS = 240.0
"""In which the clients end their transactions, logs become stable, and everything is read once more."""


class Workload:
    """The program. `history` is complete when `finish` has returned."""

    def __init__(self, bootstrap: str, topics: dict[str, int], seed: int, output: Path) -> None:
        """`topics` are input and output, with their partitions; `output` gets the events."""
        jars = resolve(
            f"kafka-clients-{JAVA_CLIENT}",
            f"org.apache.kafka:kafka-clients:{JAVA_CLIENT}",
            "org.slf4j:slf4j-nop:1.7.36",
        )
        self._output = output
        arguments = [str(each) for topic in topics.items() for each in topic]
        command = [require("java"), "-Xmx512m", "-cp", f"{jars}/*", str(SOURCE)]
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, bootstrap, *arguments, str(seed)], stdin=subprocess.PIPE, stdout=out, stderr=errors
            )

    @property
    def commits(self) -> int:
        """So far."""
        return self._output.read_bytes().count(b'"outcome": "committed"')

    def finish(self) -> History:
        self._process.communicate(b"\n", timeout=END_SECONDS)
        errors = self._output.with_suffix(".err").read_text()
        assert self._process.returncode == 0, errors[-4000:]
        with self._output.open() as lines:
            return history_of(json.loads(line) for line in lines)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def working(bootstrap: str, topics: dict[str, int], seed: int, output: Path) -> Iterator[Workload]:
    workload = Workload(bootstrap, topics, seed, output)
    try:
        yield workload
    finally:
        workload.kill()


def history_of(events: Iterable[dict[str, Any]]) -> History:
    history = History()
    transactions: dict[str, Transaction] = {}
    sends: dict[str, Send] = {}
    for event in events:
        at = float(event["at"])
        match event["event"]:
            case "begin":
                transaction = Transaction(
                    event["name"], event["id"], (event["instance"], event["number"]), outcome=Outcome.ABORTED
                )
                transactions[transaction.name] = transaction
                history.transactions.append(transaction)
            case "send":
                send = Send(_key(event), event["value"], source=_source(event))
                sends[send.value] = send
                transactions[event["name"]].sends.append(send)
            case "acknowledged":
                sends[event["value"]].offset = event["offset"]
            case "offsets":
                transactions[event["name"]].offsets[event["group"], _key(event)] = event["offset"]
            case "commit":
                transactions[event["name"]].outcome = Outcome.UNKNOWN
                transactions[event["name"]].commit_sent = at
            case "end":
                transactions[event["name"]].outcome = Outcome(event["outcome"])
                transactions[event["name"]].ended = at
            case "poll":
                history.polls.append(
                    Poll(
                        event["reader"],
                        event["assignment"],
                        event["committed"],
                        _key(event),
                        event["start"],
                        event["end"],
                        tuple((offset, value) for offset, value in event["records"]),
                        at,
                    )
                )
            case "offset_read":
                read = OffsetRead(event["group"], _key(event), event["offset"], event["asked"], at)
                history.offset_reads.append(read)
            case "log_end":
                history.ends[_key(event)] = LogEnd(event["stable"], event["end"])
            case "final_offset":
                history.final_offsets[event["group"], _key(event)] = event["offset"]
            case "refused" | "done":
                pass
            case other:
                raise ValueError(other)
    return history


def _key(event: dict[str, Any]) -> Key:
    return event["topic"], event["partition"]


def _source(event: dict[str, Any]) -> Source | None:
    if "group" not in event:
        return None
    key = (event["source_topic"], event["source_partition"])
    return Source(event["group"], key, event["source_offset"])
