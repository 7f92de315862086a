"""A well-behaved client that notes how long it waits while the broker is under attack.

Run as a program, so that nothing an attack does in the test's own process delays it:

    python probe.py HOST:PORT [PID]

It produces one record to the topic `probe`, fetches it and asks for the API versions, again and again, until
its standard input is closed. Then it prints one line of JSON: how many requests were answered, the longest
wait and the 99th percentile, in seconds. The time until a failed request ends is a wait like others. With the
process id of the broker, time in which the broker or this program was ready to run and had no processor is
not counted: other programs of a busy machine took it, not the broker.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ottla.protocol.messages.api_versions import ApiVersionsRequest
from raw_client import RawClient

TOPIC = "probe"
PACE = 0.002  # seconds between two requests
PATIENCE = 120.0


class Probe:
    def __init__(self, address: str, broker: str | None = None) -> None:
        self._address = address
        self._schedules = [Path(f"/proc/{each}/schedstat") for each in (broker, "self") if broker and each]
        self.waits: list[float] = []
        self.failures = 0

    def run(self) -> None:
        with RawClient(self._address, timeout=PATIENCE) as client:
            client.produce(TOPIC, b"first")
            print("ready", flush=True)
            last_offset = 0
            while not _closed(sys.stdin):
                answer = self._timed(lambda: client.produce(TOPIC, b"probe"))
                last_offset = last_offset if answer.error_code else answer.base_offset
                self.failures += answer.error_code != 0
                offset = last_offset
                self.failures += self._timed(lambda: client.fetch(TOPIC, offset)).error_code != 0  # noqa: B023
                self._timed(lambda: client.call(ApiVersionsRequest(), 0))

    def _timed(self, request: Callable[[], Any]) -> Any:
        began, delayed = time.monotonic(), self._delays()
        try:
            return request()
        finally:
            wait = time.monotonic() - began
            self.waits.append(max(wait - (self._delays() - delayed), 0.0))

    def _delays(self) -> float:
        """Seconds that the broker's event loop and this program have waited for a processor."""
        return sum(int(path.read_text().split()[1]) for path in self._schedules) / 1e9

    def report(self) -> dict[str, float]:
        waits = sorted(self.waits) or [0.0]
        return {
            "requests": len(self.waits),
            "failures": self.failures,
            "longest": waits[-1],
            "p99": waits[int(len(waits) * 0.99)],
        }


def _closed(file: TextIO) -> bool:
    """Waits for a moment; true when the other end of `file` was closed."""
    readable, _, _ = select.select([file], [], [], PACE)
    return bool(readable) and not file.read(1)


if __name__ == "__main__":
    probe = Probe(*sys.argv[1:])
    try:
        probe.run()
    except OSError as error:
        print(f"probe: {error}", file=sys.stderr)
        probe.failures += 1
    print(json.dumps(probe.report()), flush=True)
