"""The figures of a run for Prometheus."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from ottla.pipeline.running.metrics import CONTENT_TYPE, metrics_server, metrics_text, parse_address
from ottla.pipeline.running.progress import Batch, Board, Phase


def board() -> Board:
    found = Board(["clean", 'sc"ore'], lambda: 100.0)
    found.enter("clean", Phase.running)
    found.batch_done("clean", Batch(0, rows=7, seconds=0.25, bad=2, late=1, state_rows=5))
    found.batch_done("clean", Batch(1, rows=3, seconds=0.5))
    found.lag("clean", 12, 1.5)
    found.failed('sc"ore', "boom", Phase.restarting, "", restart=True)
    return found


def test_figures_have_a_line_for_each_stage_that_has_them() -> None:
    lines = metrics_text("shop", board().snapshot()).splitlines()
    of_clean = {
        line.split()[0].partition("{")[0]: line.split()[1] for line in lines if 'stage="clean"' in line
    }
    assert of_clean == {
        "ottla_pipeline_rows_total": "10",
        "ottla_pipeline_bad_records_total": "2",
        "ottla_pipeline_late_rows_total": "1",
        "ottla_pipeline_restarts_total": "0",
        "ottla_pipeline_batches_total": "2",
        "ottla_pipeline_batch_seconds_total": "0.75",
        "ottla_pipeline_last_batch_seconds": "0.5",
        "ottla_pipeline_lag_records": "12",
        "ottla_pipeline_lag_seconds": "1.5",
        "ottla_pipeline_state_rows": "5",
        "ottla_pipeline_running": "1",
    }
    assert 'ottla_pipeline_restarts_total{pipeline="shop",stage="sc\\"ore"} 1' in lines
    assert not any("lag" in line and "ore" in line for line in lines)
    assert "# TYPE ottla_pipeline_rows_total counter" in lines


def test_the_server_answers_metrics_and_nothing_else() -> None:
    with metrics_server("0", "shop", board()) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert b"ottla_pipeline_rows_total" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        with socket.create_connection(("127.0.0.1", port)):  # a silent client does not hold up others
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?x=1", timeout=10).close()
        with pytest.raises(OSError), metrics_server(str(port), "other", board()):
            pass
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9108", ("127.0.0.1", 9108)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::]:7", ("::", 7)),
        (":5", ("127.0.0.1", 5)),
    ],
)
def test_metrics_addresses_are_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "1:y", "70000", "-1"])
def test_an_invalid_metrics_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no port"):
        parse_address(text)
