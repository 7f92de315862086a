"""A process has only so many descriptors: clients may not take those that the log needs."""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack
from pathlib import Path

from broker_process import BrokerProcess
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from raw_client import RawClient

SOFT, HARD = 200, 300
CROWD = 150
"""More clients than a broker with so few descriptors lets in."""
PARTITIONS = 100

_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
os.execv(sys.argv[3], sys.argv[3:])
"""


class LimitedBroker(BrokerProcess):
    """A broker that starts with few descriptors and has to ask for the last hundred itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._command = [sys.executable, "-c", _LIMITED, str(SOFT), str(HARD), *self._command]


def test_the_broker_takes_all_the_descriptors_that_the_system_allows(tmp_path: Path) -> None:
    with LimitedBroker(tmp_path) as broker:
        assert broker.process is not None
        assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (HARD, HARD)


def test_a_crowd_of_clients_leaves_the_log_its_files(tmp_path: Path) -> None:
    with LimitedBroker(tmp_path) as broker, ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        crowd = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(CROWD)]
        assert crowd[-1].is_closed(within=5), "the last one is turned away"
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
        created = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
        assert created.topics[0].error_code == 0
        for partition in range(PARTITIONS):
            answer = client.produce("t", b"v", partition=partition)
            assert answer.error_code == 0, answer.error_message
