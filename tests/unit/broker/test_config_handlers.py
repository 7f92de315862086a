"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over the wire, as Apache Kafka 4.3.1 was seen to
answer, and the ACL requests that are answered without an authorizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import ottla.testing
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import alter_configs as replacing
from ottla.protocol.messages import incremental_alter_configs as incremental
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol_client.wire import ConnectionLost, Wire
from ottla.testing.in_process import InProcessBroker

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NONE, INVALID_REQUEST, INVALID_CONFIG = ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with ottla.testing.broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def wire(broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def topic(broker: InProcessBroker) -> str:
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name)
    return name


def describe(
    wire: Wire, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **more: bool
) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = wire.call(DescribeConfigsRequest(resources=[resource], **more), version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def values(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    """Value and source of each key."""
    result = describe(wire, kind, name, list(keys))
    assert result.error_code == NONE
    return {config.name: (config.value, config.config_source) for config in result.configs}


def steps(*operations: tuple[str, int, str | None]) -> list[incremental.AlterableConfig]:
    return [incremental.AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in operations]


def change(
    wire: Wire,
    kind: int,
    name: str,
    *operations: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    resource = incremental.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=steps(*operations)
    )
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = wire.call(request, version).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message


def replace(
    wire: Wire,
    kind: int,
    name: str,
    *pairs: tuple[str, str | None],
    version: int = 2,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    configs = [replacing.AlterableConfig(name=n, value=v) for n, v in pairs]
    resource = replacing.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = replacing.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = wire.call(request, version).responses
    return response.error_code, response.error_message


# -- describing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_topic_is_described_in_every_version(wire: Wire, topic: str, version: int) -> None:
    result = describe(wire, TOPIC, topic, version=version, include_synonyms=True)
    assert (result.error_code, result.error_message) == (NONE, "")
    assert len(result.configs) == 33
    segment = next(config for config in result.configs if config.name == "segment.bytes")
    assert (segment.value, segment.config_source, segment.read_only) == ("1073741824", 5, False)
    assert segment.config_type == (3 if version >= 3 else 0)
    assert not segment.documentation
    (synonym,) = segment.synonyms
    assert (synonym.name, synonym.value, synonym.source) == ("log.segment.bytes", "1073741824", 5)


def test_synonyms_and_documentation_come_only_when_asked_for(wire: Wire, topic: str) -> None:
    (config,) = describe(wire, TOPIC, topic, ["segment.bytes"]).configs
    assert (config.synonyms, config.documentation) == ([], None)
    (config,) = describe(wire, TOPIC, topic, ["segment.bytes"], include_documentation=True).configs
    assert "segment" in config.documentation


def test_unknown_resource_names_and_types_are_reported(wire: Wire) -> None:
    def error(kind: int, name: str) -> int:
        result = describe(wire, kind, name)
        assert result.configs == []
        assert result.error_message
        return int(result.error_code)

    assert error(TOPIC, "nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error(TOPIC, "a/b") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert error(TOPIC, "") == ErrorCode.INVALID_TOPIC_EXCEPTION
    for kind, name in [
        (BROKER, "2"), (BROKER, "one"), (LOGGER, ""), (LOGGER, "2"), (GROUP, ""),
        (CLIENT_METRICS, "x"), (0, "x"), (3, "x"), (127, ""), (-1, "x"),
    ]:  # fmt: skip
        assert error(kind, name) == INVALID_REQUEST, (kind, name)


def test_describing_a_broker_shows_static_values_and_defaults_and_hides_secrets(wire: Wire) -> None:
    configs = {c.name: c for c in describe(wire, BROKER, "1", include_synonyms=True).configs}
    assert (configs["node.id"].value, configs["node.id"].read_only) == ("1", True)
    assert configs["listeners"].config_source == 4
    assert (configs["ssl.key.password"].value, configs["ssl.key.password"].is_sensitive) == (None, True)
    assert configs["log.retention.ms"].value is None
    assert not configs["log.retention.ms"].read_only
    assert [s.name for s in configs["log.retention.hours"].synonyms] == ["log.retention.hours"]


def test_several_resources_are_answered_in_their_order_and_each_once(wire: Wire, topic: str) -> None:
    names = [topic, "nobody", topic]
    resources = [DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in names]
    results = wire.call(DescribeConfigsRequest(resources=resources)).results
    assert [(r.resource_name, r.error_code) for r in results] == [(topic, 0), ("nobody", 3)]


def test_a_resource_that_is_named_twice_is_answered_with_the_keys_of_both(wire: Wire, topic: str) -> None:
    def described(*asked: list[str] | None) -> list[str]:
        resources = [
            DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=keys)
            for keys in asked
        ]
        (result,) = wire.call(DescribeConfigsRequest(resources=resources)).results
        return [config.name for config in result.configs]

    assert sorted(described(["retention.ms"], ["cleanup.policy"])) == ["cleanup.policy", "retention.ms"]
    assert described(["retention.ms"], None) == described(None)


# -- topics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_value_that_is_set_is_in_force_when_the_answer_comes(
    wire: Wire, broker: InProcessBroker, topic: str, version: int
) -> None:
    assert change(wire, TOPIC, topic, ("retention.ms", SET, "5000"), version=version) == (NONE, None)
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("5000", 1)}
    assert broker.broker is not None
    assert broker.broker.replicas.get(topic, 0).log.config.retention_ms == 5000
    assert change(wire, TOPIC, topic, ("retention.ms", DELETE, None)) == (NONE, None)
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("604800000", 5)}
    assert broker.broker.replicas.get(topic, 0).log.config.retention_ms == 604_800_000


def test_lists_are_appended_to_and_subtracted_from(wire: Wire, topic: str) -> None:
    def policy() -> str | None:
        return values(wire, TOPIC, topic, "cleanup.policy")["cleanup.policy"][0]

    assert change(wire, TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == (NONE, None)
    assert policy() == "delete,compact"
    assert change(wire, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == (NONE, None)
    assert policy() == "compact"
    code, _ = change(wire, TOPIC, topic, ("cleanup.policy", APPEND, "shred"))
    assert (code, policy()) == (INVALID_CONFIG, "compact")


def test_validate_only_checks_and_changes_nothing(wire: Wire, topic: str) -> None:
    assert change(wire, TOPIC, topic, ("retention.ms", SET, "5"), validate_only=True) == (NONE, None)
    assert replace(wire, TOPIC, topic, ("retention.ms", "5"), validate_only=True) == (NONE, None)
    assert change(wire, TOPIC, topic, ("retention.ms", SET, "x"), validate_only=True)[0] == INVALID_CONFIG
    assert change(wire, TOPIC, "nobody", ("retention.ms", SET, "5"), validate_only=True)[0] == 3
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("604800000", 5)}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_removes_keys_that_are_not_named(wire: Wire, topic: str, version: int) -> None:
    assert replace(wire, TOPIC, topic, ("retention.ms", "5"), ("segment.ms", "6"), version=version) == (
        NONE,
        None,
    )
    assert replace(wire, TOPIC, topic, ("segment.ms", "7"), version=version) == (NONE, None)
    assert values(wire, TOPIC, topic, "retention.ms", "segment.ms") == {
        "retention.ms": ("604800000", 5),
        "segment.ms": ("7", 1),
    }
    assert replace(wire, TOPIC, topic, version=version) == (NONE, None)
    assert values(wire, TOPIC, topic, "segment.ms") == {"segment.ms": ("604800000", 5)}


@pytest.mark.parametrize(
    ("operation", "code", "reason"),
    [
        (("nobody.knows", SET, "1"), INVALID_CONFIG, "unknown topic key nobody.knows"),
        (("retention.mss", SET, "1"), INVALID_CONFIG, "did you mean retention.ms?"),
        (("retention.ms", SET, "soon"), INVALID_CONFIG, "retention.ms: must be a whole number"),
        (("segment.bytes", SET, "12"), INVALID_CONFIG, "segment.bytes: must be at least 1048576 (got 12)"),
        (("retention.ms", SET, None), INVALID_REQUEST, "must not be null"),
        (("retention.ms", APPEND, "1"), INVALID_CONFIG, "not a list"),
        (("retention.ms", 9, "1"), INVALID_REQUEST, "no operation 9"),
        (("remote.storage.enable", SET, "true"), INVALID_CONFIG, "tiered storage"),
    ],
)
def test_an_invalid_topic_config_is_refused_with_the_reason(
    wire: Wire, topic: str, operation: tuple[str, int, str | None], code: int, reason: str
) -> None:
    error, message = change(wire, TOPIC, topic, operation)
    assert error == code
    assert reason in (message or "")
    assert all(source != 1 for _, source in values(wire, TOPIC, topic).values())


def test_one_bad_key_keeps_all_of_its_resource_from_changing(wire: Wire, topic: str) -> None:
    code, _ = change(wire, TOPIC, topic, ("retention.ms", SET, "5"), ("segment.bytes", SET, "5"))
    assert code == INVALID_CONFIG
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("604800000", 5)}


def test_a_key_or_a_resource_named_twice_is_refused(wire: Wire, topic: str) -> None:
    code, message = change(wire, TOPIC, topic, ("retention.ms", SET, "5"), ("retention.ms", SET, "5"))
    assert (code, "twice" in (message or "")) == (INVALID_REQUEST, True)
    assert replace(wire, TOPIC, topic, ("retention.ms", "5"), ("retention.ms", "5"))[0] == INVALID_REQUEST
    once = incremental.AlterConfigsResource(
        resource_type=TOPIC, resource_name=topic, configs=steps(("retention.ms", SET, "5"))
    )
    responses = wire.call(incremental.IncrementalAlterConfigsRequest(resources=[once, once])).responses
    assert [r.error_code for r in responses] == [INVALID_REQUEST, INVALID_REQUEST]
    again = replacing.AlterConfigsResource(resource_type=TOPIC, resource_name=topic)
    responses = wire.call(replacing.AlterConfigsRequest(resources=[again, again])).responses
    assert [r.error_code for r in responses] == [INVALID_REQUEST, INVALID_REQUEST]
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("604800000", 5)}


def test_each_resource_succeeds_or_fails_for_itself(wire: Wire, topic: str) -> None:
    resources = [
        incremental.AlterConfigsResource(
            resource_type=TOPIC, resource_name=name, configs=steps(("retention.ms", SET, "77"))
        )
        for name in ("nobody", topic, "a/b", "")
    ]
    responses = wire.call(incremental.IncrementalAlterConfigsRequest(resources=resources)).responses
    assert [r.error_code for r in responses] == [3, 0, 17, INVALID_REQUEST]
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("77", 1)}


def test_changes_survive_a_restart() -> None:
    with ottla.testing.broker() as broker:
        broker.create_topic("kept")
        with Wire(broker.bootstrap_servers) as wire:
            assert change(wire, TOPIC, "kept", ("retention.ms", SET, "5")) == (NONE, None)
            assert change(wire, BROKER, "", ("message.max.bytes", SET, "99")) == (NONE, None)
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            assert values(wire, TOPIC, "kept", "retention.ms", "max.message.bytes") == {
                "retention.ms": ("5", 1),
                "max.message.bytes": ("99", 3),
            }


# -- brokers, groups, loggers -------------------------------------------------------------------------------


def test_brokers_change_one_by_one_or_all_together_and_topics_follow(
    wire: Wire, broker: InProcessBroker, topic: str
) -> None:
    assert change(wire, BROKER, "", ("log.retention.ms", SET, "100000")) == (NONE, None)
    assert values(wire, BROKER, "") == {"log.retention.ms": ("100000", 3)}
    assert values(wire, BROKER, "1", "log.retention.ms") == {"log.retention.ms": ("100000", 3)}
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("100000", 3)}
    assert change(wire, BROKER, "1", ("log.retention.ms", SET, "200000")) == (NONE, None)
    assert values(wire, TOPIC, topic, "retention.ms") == {"retention.ms": ("200000", 2)}
    assert broker.broker is not None
    assert broker.broker.replicas.get(topic, 0).log.config.retention_ms == 200_000
    for name in ("1", ""):
        assert change(wire, BROKER, name, ("log.retention.ms", DELETE, None)) == (NONE, None)
    assert values(wire, BROKER, "") == {}
    assert broker.broker.replicas.get(topic, 0).log.config.retention_ms == 604_800_000


@pytest.mark.parametrize(
    ("name", "operation", "code", "reason"),
    [
        ("1", ("num.partitions", SET, "3"), INVALID_REQUEST, "cannot change while the broker runs"),
        ("", ("listeners", SET, ":1"), INVALID_REQUEST, "can only change for one broker"),
        ("1", ("log.segment.bytes", SET, "12"), INVALID_REQUEST, "must be at least 1048576"),
        ("", ("log.retention.ms", SET, "x"), INVALID_REQUEST, "must be a whole number"),
        ("1", ("nobody.knows", SET, "x"), INVALID_REQUEST, "unknown broker key"),
        ("1", ("max.connections", APPEND, "1"), INVALID_CONFIG, "not a list"),
        ("2", ("log.retention.ms", SET, "5"), INVALID_REQUEST, "This is broker 1"),
        ("one", ("log.retention.ms", SET, "5"), INVALID_REQUEST, "named by its number"),
    ],
)
def test_an_invalid_broker_config_is_refused_with_the_reason(
    wire: Wire, name: str, operation: tuple[str, int, str | None], code: int, reason: str
) -> None:
    error, message = change(wire, BROKER, name, operation)
    assert (error, reason in (message or "")) == (code, True), message


def test_an_unknown_key_can_be_deleted(wire: Wire, topic: str) -> None:
    assert change(wire, BROKER, "1", ("nobody.knows", DELETE, None)) == (NONE, None)
    assert change(wire, TOPIC, topic, ("nobody.knows", DELETE, None)) == (NONE, None)


def test_groups_have_settings_before_they_have_members(wire: Wire) -> None:
    key = "consumer.session.timeout.ms"
    assert values(wire, GROUP, "g", key) == {key: ("45000", 5)}
    assert change(wire, GROUP, "g", (key, SET, "50000")) == (NONE, None)
    assert values(wire, GROUP, "g", key) == {key: ("50000", 8)}
    assert change(wire, GROUP, "g", (key, SET, "1"))[0] == INVALID_CONFIG
    assert change(wire, GROUP, "", (key, SET, "50000"))[0] == INVALID_REQUEST
    assert replace(wire, GROUP, "g") == (NONE, None)
    assert values(wire, GROUP, "g", key) == {key: ("45000", 5)}


def test_the_number_of_configured_groups_is_limited() -> None:
    key = "consumer.session.timeout.ms"
    full = ErrorCode.POLICY_VIOLATION
    with ottla.testing.broker(max_configured_groups=3) as broker, Wire(broker.bootstrap_servers) as wire:
        resources = [
            incremental.AlterConfigsResource(
                resource_type=GROUP,
                resource_name=f"g{n}",
                configs=[incremental.AlterableConfig(name=key, config_operation=SET, value="50000")],
            )
            for n in range(5)
        ]
        answer = wire.call(incremental.IncrementalAlterConfigsRequest(resources=resources), 1)
        assert [each.error_code for each in answer.responses] == [NONE, NONE, NONE, full, full]
        assert "max.configured.groups" in answer.responses[3].error_message
        assert change(wire, GROUP, "g0", (key, SET, "55000")) == (NONE, None)
        assert change(wire, GROUP, "g0", (key, DELETE, None)) == (NONE, None)
        assert change(wire, GROUP, "g0", (key, DELETE, None)) == (NONE, None)
        # A name of 501 characters counts three times.
        assert change(wire, GROUP, "g" * 501, (key, SET, "50000"))[0] == full
        assert change(wire, GROUP, "g4", (key, SET, "50000")) == (NONE, None)
        assert change(wire, BROKER, "", ("max.configured.groups", SET, "4")) == (NONE, None)
        assert change(wire, GROUP, "g5", (key, SET, "50000")) == (NONE, None)
        assert change(wire, GROUP, "g6", (key, SET, "50000"))[0] == full


def test_log_levels_change_while_the_broker_runs(wire: Wire) -> None:
    logger = logging.getLogger("ottla.test.levels")
    try:
        assert change(wire, LOGGER, "1", ("ottla.test.levels", SET, "TRACE")) == (NONE, None)
        assert logger.getEffectiveLevel() == 5
        assert values(wire, LOGGER, "1", "ottla.test.levels") == {"ottla.test.levels": ("TRACE", 6)}
        assert change(wire, LOGGER, "1", ("ottla.test.levels", SET, "WARN"), validate_only=True) == (
            NONE,
            None,
        )
        assert logger.getEffectiveLevel() == 5
        assert change(wire, LOGGER, "1", ("ottla.test.levels", DELETE, None)) == (NONE, None)
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)
    assert "root" in values(wire, LOGGER, "1")
    assert change(wire, LOGGER, "1", ("no.such.logger", SET, "INFO"))[0] == INVALID_CONFIG
    assert change(wire, LOGGER, "1", ("root", SET, "LOUD"))[0] == INVALID_CONFIG
    assert change(wire, LOGGER, "1", ("root", DELETE, None))[0] == INVALID_REQUEST
    assert change(wire, LOGGER, "1", ("root", APPEND, "INFO"))[0] == INVALID_REQUEST
    assert replace(wire, LOGGER, "1", ("root", "INFO"))[0] == INVALID_REQUEST


def test_unsupported_resource_types_are_refused(wire: Wire) -> None:
    for kind in (0, 1, 3, CLIENT_METRICS, 64, 127, -1):
        assert change(wire, kind, "x", ("a", SET, "b"))[0] == INVALID_REQUEST
        assert replace(wire, kind, "x", ("a", "b"))[0] == INVALID_REQUEST


# -- access rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_are_answered_as_without_an_authorizer(wire: Wire, version: int) -> None:
    disabled = ErrorCode.SECURITY_DISABLED
    described = wire.call(
        DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1),
        version,
    )
    assert (described.error_code, described.resources) == (disabled, [])
    rule = AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    created = wire.call(CreateAclsRequest(creations=[rule, rule]), version)
    assert [result.error_code for result in created.results] == [disabled, disabled]
    pattern = DeleteAclsFilter(resource_type_filter=2, operation=1, permission_type=1)
    deleted = wire.call(DeleteAclsRequest(filters=[pattern]), version)
    assert [(r.error_code, r.matching_acls) for r in deleted.filter_results] == [(disabled, [])]


def test_an_acl_of_unknown_resource_type_closes_the_connection(broker: InProcessBroker) -> None:
    for request in (
        DescribeAclsRequest(resource_type_filter=0, operation=1, permission_type=1),
        CreateAclsRequest(creations=[AclCreation(resource_type=2, operation=0, permission_type=3)]),
        DeleteAclsRequest(filters=[DeleteAclsFilter(resource_type_filter=2, operation=1, permission_type=0)]),
    ):
        with Wire(broker.bootstrap_servers) as wire, pytest.raises(ConnectionLost):
            wire.call(request)
