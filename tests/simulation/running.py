"""What all simulated runs have in common: a run's outcome and log, and a command for many runs."""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import gc
import io
import logging
import os
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from ottla.testing.simulation.world import World
from simulation.history import Violation


class Report(Protocol):
    """What a run came to; its text is one line."""

    @property
    def violation(self) -> str: ...
    @property
    def log(self) -> str: ...


class _VirtualTime(logging.Formatter):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._world.loop.time():10.6f} {record.levelname} {record.name}: {super().format(record)}"


def outcome(world: World, scenario: Coroutine[Any, Any, None], seconds: float) -> tuple[str, str]:
    """Run a scenario and end its world. The violation, empty if there was none, and the brokers' log."""
    violation = ""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(_VirtualTime(world))
    logger = logging.getLogger("ottla")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        world.run(asyncio.wait_for(scenario, seconds))
        if world.loop.defects:
            violation = f"an uncaught error: {world.loop.defects[0]}"
    except Violation as broken:
        violation = str(broken)
    except TimeoutError:
        violation = "the run did not come to its end"
    except Exception:  # noqa: BLE001 - a defect of the broker or of the simulation: told with its seed
        violation = traceback.format_exc()
    finally:
        world.end()
        logger.removeHandler(handler)
        logger.propagate = True
    return violation, log.getvalue()


def seeds_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many runs")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="print every run")
    parser.add_argument("--log", action="store_true", help="print the brokers' log of a run that failed")
    parser.add_argument("--level", default="WARNING", help="what the log holds: INFO, DEBUG")
    return parser


@contextlib.contextmanager
def little_garbage() -> Iterator[None]:
    """A run leaves little garbage, and what was imported leaves none: looking for it is a tenth of a run."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


_process = contextlib.ExitStack()


def _begin_process(level: str) -> None:
    logging.getLogger("ottla").setLevel(level)
    _process.enter_context(little_garbage())


def run_seeds(run: Callable[[int], Report], arguments: argparse.Namespace) -> int:
    """Run all seeds in processes; the exit status."""
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    failed = 0
    with concurrent.futures.ProcessPoolExecutor(
        arguments.jobs, initializer=_begin_process, initargs=(arguments.level,)
    ) as pool:
        for report in pool.map(run, seeds):
            failed += bool(report.violation)
            if report.violation or arguments.verbose:
                print(report, flush=True)
            if report.violation and arguments.log:
                print(report.log, flush=True)
    seconds = time.monotonic() - began
    print(f"{len(seeds)} runs in {seconds:.1f} s ({len(seeds) / seconds * 60:.0f} a minute), {failed} failed")
    return 1 if failed else 0


def run_seeds_with_faults(run: Callable[..., Report], description: str | None, seconds: float) -> int:
    """The command of a simulation whose faults and length can be chosen; the exit status."""
    parser = seeds_parser(description)
    parser.add_argument("--faults", default="", help="kinds of faults to choose from, joined by commas")
    parser.add_argument("--seconds", type=float, default=seconds, help="how long there are faults")
    arguments = parser.parse_args()
    kinds = tuple(filter(None, arguments.faults.split(",")))
    return run_seeds(partial(run, kinds=kinds, seconds=arguments.seconds), arguments)
