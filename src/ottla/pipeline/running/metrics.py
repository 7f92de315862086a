"""The figures of a run as Prometheus reads them, over HTTP: `ottla pipeline run shop.py --metrics 9108`.

A request is answered from the board, which the run keeps up to date anyway, so being scraped costs the run
nothing. Counters count from the start of the run, as Prometheus expects of a process that restarts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from ottla.pipeline.running.progress import Board, Phase, StageProgress

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT = 5.0
"""Seconds for a client to send its request, so that one that is silent does not keep a thread for ever."""


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str
    value: Callable[[StageProgress], float | None]


_METRICS = (
    _Metric("rows_total", "counter", "Records read.", lambda stage: stage.rows),
    _Metric("bad_records_total", "counter", "Records that could not be read.", lambda stage: stage.bad),
    _Metric("late_rows_total", "counter", "Rows that a watermark dropped.", lambda stage: stage.late),
    _Metric("restarts_total", "counter", "Starts after a failure.", lambda stage: stage.restarts),
    _Metric("batches_total", "counter", "Batches that were committed.", lambda stage: stage.batches),
    _Metric("batch_seconds_total", "counter", "Time that batches took.", lambda stage: stage.seconds),
    _Metric(
        "last_batch_seconds",
        "gauge",
        "Time that the last batch took.",
        lambda stage: stage.batch.seconds if stage.batch else None,
    ),
    _Metric(
        "lag_records",
        "gauge",
        "Records in the topics that are not read yet.",
        lambda stage: stage.lag_records,
    ),
    _Metric("lag_seconds", "gauge", "Age of the oldest of them.", lambda stage: stage.lag_seconds),
    _Metric("state_rows", "gauge", "Rows kept by operators with state.", lambda stage: stage.state_rows),
    _Metric("running", "gauge", "1 while the stage runs.", lambda stage: stage.phase == Phase.running),
)


def metrics_text(pipeline: str, stages: Sequence[StageProgress]) -> str:
    """All figures in Prometheus' text format. What is not known (yet) is left out."""
    lines = []
    for metric in _METRICS:
        name = f"ottla_pipeline_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        for stage in stages:
            value = metric.value(stage)
            if value is not None:
                labels = f'pipeline="{_escaped(pipeline)}",stage="{_escaped(stage.stage)}"'
                shown = value if isinstance(value, float) else int(value)
                lines.append(f"{name}{{{labels}}} {shown}")
    return "\n".join(lines) + "\n"


def parse_address(text: str) -> tuple[str, int]:
    """`9108`, `0.0.0.0:9108` or `[::]:9108`; without a host only this machine is answered."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"{text!r} is no port; wanted: 9108 or 0.0.0.0:9108")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def metrics_server(address: str, pipeline: str, board: Board) -> Iterator[int]:
    """Answers GET /metrics while entered; gives the port. OSError when it cannot listen there."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "the figures are at /metrics")
                return
            body = metrics_text(pipeline, board.snapshot()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a line for every scrape would bury the display."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that goes away in the middle is no concern of the run."""

    server = Server(parse_address(address), Handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
