"""A process has only so many descriptors: clients may not take those that the log needs."""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from broker_process import BrokerProcess
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.storage.descriptors import FEWEST
from raw_client import RawClient

SOFT, HARD = 200, 300
CLIENTS = 150
"""More clients than a broker with so few descriptors lets in."""
PARTITIONS = 100

_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
os.execv(sys.argv[3], sys.argv[3:])
"""


class LimitedBroker(BrokerProcess):
    """A broker that starts with few descriptors and has to ask for the last hundred itself."""

    def __init__(self, folder: Path, soft: int = SOFT, hard: int = HARD) -> None:
        super().__init__(folder)
        self._command = [sys.executable, "-c", _LIMITED, str(soft), str(hard), *self._command]


def test_the_broker_raises_its_descriptor_limit_to_the_maximum(tmp_path: Path) -> None:
    with LimitedBroker(tmp_path) as broker:
        assert broker.process is not None
        assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (HARD, HARD)


def test_many_clients_leave_enough_descriptors_for_the_log(tmp_path: Path) -> None:
    with LimitedBroker(tmp_path) as broker, ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        clients = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(CLIENTS)]
        assert clients[-1].is_closed(within=5), "the last one is turned away"
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
        created = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
        assert created.topics[0].error_code == 0
        for partition in range(PARTITIONS):
            answer = client.produce("t", b"v", partition=partition)
            assert answer.error_code == 0, answer.error_message


def test_a_broker_with_the_fewest_descriptors_works_and_stops_cleanly(tmp_path: Path) -> None:
    with LimitedBroker(tmp_path, FEWEST, FEWEST) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            topic = CreatableTopic(name="t", num_partitions=2 * FEWEST, replication_factor=1)
            created = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            assert created.topics[0].error_code == 0
            for partition in range(2 * FEWEST):
                for _ in range(2):
                    answer = client.produce("t", b"v" * 5000, partition=partition)
                    assert answer.error_code == 0, answer.error_message
        assert broker.terminate(60) == 0
        assert "not closed cleanly" not in broker.output.read_text()
        assert (broker.data / ".kafka_cleanshutdown").exists()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            for partition in range(2 * FEWEST):
                assert client.produce("t", b"v", partition=partition).base_offset == 2


def test_many_logs_are_closed_with_few_descriptors(tmp_path: Path) -> None:
    """Where the file system cannot be synced at once, as on an older system."""
    program = """
import errno, logging, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
from ottla.clock import SystemClock
from ottla.storage.files import RealDisk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from unit.storage.logs import from_producer

class OldDisk(RealDisk):
    def sync_all(self, folder):
        raise OSError(errno.ENOSYS, "no")

logging.basicConfig()
directory = LogDirectory(Path(sys.argv[1]), OldDisk(), SystemClock())
directory.open()
for number in range(200):
    log = directory.create("topic", number, bytes(range(16)), LogConfig(index_interval_bytes=1))
    for sequence in range(3):
        log.append(from_producer(sequence), 0)
directory.close()
"""
    command = [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parents[1]), str(FEWEST)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "not closed cleanly" not in done.stderr
    assert (tmp_path / ".kafka_cleanshutdown").exists(), done.stderr


def test_a_broker_with_too_few_descriptors_refuses_to_start_and_says_how_many_it_needs(
    tmp_path: Path,
) -> None:
    broker = LimitedBroker(tmp_path, 64, 64)
    done = subprocess.run(broker._command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "may open 64 files" in done.stderr
    assert f"needs at least {FEWEST}" in done.stderr
    assert "ulimit -n" in done.stderr
