"""No connection limit locks out the client that could change it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_process import BrokerProcess
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from raw_client import RawClient

BROKER = 4


def set_on_all_brokers(client: RawClient, **values: object) -> tuple[int, str | None]:
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=str(value))
        for name, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=configs)
    answer = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0]
    return answer.error_code, answer.error_message


def is_let_in(broker: BrokerProcess) -> bool:
    try:
        with RawClient(broker.bootstrap_servers) as client:
            return bool(client.call(ApiVersionsRequest(), 0).error_code == 0)
    except OSError:
        return False


@pytest.mark.parametrize(
    "values",
    [
        {"max_connections": 0},
        {"max_connections_per_ip": 0},
        {"max_connections_per_ip_overrides": "127.0.0.1:0"},
        {"max_connections_per_ip": 0, "max_connections_per_ip_overrides": "10.0.0.1:5"},
    ],
)
def test_connection_limits_that_would_lock_out_their_own_client_are_refused(
    tmp_path: Path, values: dict[str, object]
) -> None:
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.bootstrap_servers) as admin:
            code, _ = set_on_all_brokers(admin, **values)
            assert code == ErrorCode.INVALID_REQUEST
        assert is_let_in(broker)


def test_connection_limits_may_lock_out_another_address(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, RawClient(broker.bootstrap_servers) as admin:
        values = {"max_connections_per_ip": 0, "max_connections_per_ip_overrides": "127.0.0.1:100"}
        assert set_on_all_brokers(admin, **values) == (0, None)
        with RawClient(broker.bootstrap_servers, source="127.0.0.2") as other:
            assert other.is_closed(within=5)
        assert is_let_in(broker)


def test_a_command_line_option_overrides_limits_that_lock_everyone_out(tmp_path: Path) -> None:
    """A limit of one is legal, and used up by the client that holds the one connection."""
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.bootstrap_servers) as admin:
            assert set_on_all_brokers(admin, max_connections=1) == (0, None)
            assert not is_let_in(broker)
        assert broker.terminate() == 0
    with BrokerProcess(tmp_path, {"max.connections": 10}) as broker:
        with RawClient(broker.bootstrap_servers) as first:
            assert first.call(ApiVersionsRequest(), 0).error_code == 0
            assert is_let_in(broker)
            assert set_on_all_brokers(first, max_connections=2) == (0, None)
            with RawClient(broker.bootstrap_servers) as second:
                assert second.call(ApiVersionsRequest(), 0).error_code == 0
                assert not is_let_in(broker), "a value set after the start counts"
