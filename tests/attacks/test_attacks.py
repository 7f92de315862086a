"""No client makes others wait, and none makes the broker take more memory than it may: one test an attack."""

from __future__ import annotations

from pathlib import Path

import pytest

from attacks.attack import MB, Attack, Target, carry_out
from attacks.catalogue import ATTACKS
from broker_process import BrokerProcess


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.name)
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
