"""What all tests share: which broker they talk to, and how they are spread over processes.

Tests that state a client's promise take the fixture `bootstrap`. It is an Ottla broker inside the test's own
process, one per worker (in tests/conformance there is a cluster of three besides), unless
`--bootstrap HOST:PORT` (or OTTLA_TEST_BOOTSTRAP) names a running Kafka: the same tests pass against Apache
Kafka, and running them there is how a doubt about a promise is settled.

`pytest -n auto` starts two processes per core, since many tests wait: for a session to time out, for another
process, for the disk. Tests that share a Spark session run in one of two groups (`--dist loadgroup`), so that
two processes start Spark and not all of them; the longest tests come first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import ottla.testing

# The JVM of a test lives for a minute: optimising its code would double the processor time that it takes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A shell has what it runs in the background ignore Ctrl-C, and with it all processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same with nohup and SIGHUP: what is handled here is not ignored there, either.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

SPARK_GROUPS = 2
LONG = (
    "crash/test_pipeline_crashes.py",
    "pipeline/test_cli_pipeline.py",
    "pipeline/test_launch.py",
    "pipeline/test_news_demo.py",
    "crash/test_cluster_kill.py",
    "crash/test_broker_kill.py",
    "crash/test_topic_kill.py",
    "limits/test_memory.py",
    "fuzz/test_fuzz_broker.py",
    "conformance/test_groups.py",
    "clients/*.py",
    "client/*.py",
)
"""Files with long tests, or many that run in one group, the longest first: one that begins last would
keep the whole run waiting."""


class FailuresAtOnce:
    """The names of tests that fail, when they fail: the slow suite says no more for an hour."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid} failed ({report.when})", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)  # before xdist's own, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    files = sorted({item.path for item in items if _uses_spark(item)})
    places = {path: _place(path) for path in {item.path for item in items}}
    for item in items:
        if _uses_spark(item):
            item.add_marker(pytest.mark.xdist_group(f"spark-{files.index(item.path) % SPARK_GROUPS}"))
    items.sort(key=lambda item: places[item.path])
    yield
    if config.getoption("loadgroup", False):
        # In a pytest that xdist does not fit, groups are ignored without a word: every process starts Spark.
        lost = [item.nodeid for item in items if _uses_spark(item) and "@spark-" not in item.nodeid]
        if lost:
            raise pytest.UsageError(f"this pytest-xdist does not set the group of {lost[0]}")


def _place(path: Path) -> int:
    """Where a file comes in the order of the run."""
    return next((number for number, name in enumerate(LONG) if path.match(name)), len(LONG))


def _uses_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("OTTLA_TEST_BOOTSTRAP"),
        help="run the conformance tests against this Kafka instead of a broker of their own",
    )


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    given = request.config.getoption("--bootstrap")
    if given:
        yield given
        return
    # Groups do not wait for more members: the tests know how many will join.
    settings = {"group.initial.rebalance.delay.ms": 0}
    brokers = getattr(request, "param", 1)
    running = ottla.testing.broker if brokers == 1 else partial(ottla.testing.cluster, brokers)
    with running(settings=settings) as started:
        yield started.bootstrap_servers


def pytest_sessionfinish() -> None:
    if "zookeeper_server" in sys.modules:
        sys.modules["zookeeper_server"].end_shared_server()
