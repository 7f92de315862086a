"""No client makes others wait, and none makes the broker take more memory than it may: one test an attack."""

from __future__ import annotations

from pathlib import Path

import pytest

from attacks.attack import MB, Attack, Target, carry_out
from attacks.catalogue import ATTACKS
from broker_process import BrokerProcess

LONG = {
    "requests about 30,000 topics",
    "requests about 30,000 groups",
    "300,000 tiny compressed records without a max timestamp",
    "300,000 tiny compressed records to a compacted topic",
    "200 fetch sessions of 500 topics that do not exist",
    "12,000 invented producer ids",
    "small batches to 16 partitions, to be compressed anew at the highest level, from four clients",
    "500 JoinGroups of 1 MB whose clients leave",
    "a large batch to be compressed anew at the highest level",
    "settings for 100,000 invented groups",
    "DescribeConfigs of 30,000 invented groups",
    "AddPartitionsToTxn for 20,000 invented transactions",
    "AddPartitionsToTxn for 2,000 transactions",
    "DescribeTransactions of 100,000 invented ids",
    "OffsetCommit of a million entries, padded to 60 MB",
    "a Produce naming 50,000 topics that do not exist",
    "300,000 tiny compressed records too far ahead",
    "Fetch of 20,000 topics that waits",
    "ListOffsets by time over five batches of 100,000 records, two clients",
    "batches of 301 records that hold 90,000 headers, one after the other",
    "OffsetFetch of one partition 100,000 times",
    "DescribeProducers of one partition 5,000 times",
    "a Produce of batches to be opened to 500 partitions",
}
"""Larger forms of others: with those left, each mechanism is still attacked in every run."""
assert {attack.name for attack in ATTACKS} >= LONG


@pytest.mark.parametrize(
    "one",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in LONG)) for each in ATTACKS],
)
def test_other_clients_are_served_during_an_attack(one: Attack, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, one.settings) as broker:
        assert broker.process is not None
        outcome = carry_out(one, Target(broker.bootstrap_servers, broker.process.pid), busy_machine=True)
        print(
            f"{one.name}: longest wait {outcome.longest_wait * 1000:.0f} ms, "
            f"p99 {outcome.p99 * 1000:.1f} ms, peak {outcome.peak_memory / MB:.0f} MB, "
            f"kept {outcome.kept_memory / MB:.0f} MB, {outcome.seconds:.1f} s"
        )
        assert outcome.failures == 0
        assert outcome.longest_wait < one.longest_wait
        assert outcome.peak_memory < one.memory
        assert "Traceback" not in broker.output.read_text()
