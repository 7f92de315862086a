"""DescribeConfigs (32), AlterConfigs (33) and IncrementalAlterConfigs (44): settings that change at run time.

Four kinds of resources have them: topics, brokers (one by its number, all by the empty name), groups, and the
loggers of this process. Describing reads the broker's configuration and the cluster image. Altering checks
against the table, hands each resource's change to the controller as a function of what it has at that moment,
so that no two clients overwrite each other, and answers when this broker has taken over the outcome: from
then on the change is in force here. A broker that is not the controller forwards it (`forwarding`).

Each resource succeeds or fails for itself; a resource named twice fails. Bad values are INVALID_CONFIG for
topics and groups and INVALID_REQUEST for brokers, as in Kafka. AlterConfigs replaces all that a resource had.

Version notes. Describe 1 and 2 tell sources and synonyms, 3 adds types and documentation. Sarama's
AlterConfigs v2 cannot be read and closes its connection, here as in Kafka.

A request that changes more than 10,000 resources is refused as a whole, as in Kafka. Of a DescribeConfigs
whose answer would be larger than `socket.request.max.bytes` the rest is refused. A group can be configured
before it exists, but only so many of them are (`max.configured.groups`); Kafka keeps any number, for ever.

Differences from Kafka, on purpose: a resource that is described twice is answered once, with the keys of
both; an unknown broker key is refused instead of stored without effect, since
there are no plugins that could read it; client metrics (resource type 16) are refused, since none are
collected; and AlterConfigs naming a resource twice is answered, where Kafka never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from ottla.broker.dispatch import RequestContext
from ottla.broker.log_levels import check_log_level, log_levels, set_log_level
from ottla.broker.portions import MAX_CHANGES, TOO_MANY_CHANGES, in_portions
from ottla.broker.ports import (
    ClientLogging,
    Configuration,
    ControllerAccess,
    ImageAccess,
    ImageFollowing,
    SlicedWork,
)
from ottla.broker.request_scheduler import Steps
from ottla.cluster.topic_rules import check_name
from ottla.config.changes import Operation, Step, check_no_twice, difference, edited, replacement
from ottla.config.describe import Entry, describe_broker, describe_cluster, describe_group, describe_topic
from ottla.config.keys import ConfigKey, Type
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from ottla.config.validation import (
    check_lets_in,
    validate_broker_config,
    validate_group_config,
    validate_topic_config,
)
from ottla.config.values import Source
from ottla.printable import listed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages import alter_configs as replacing
from ottla.protocol.messages import incremental_alter_configs as incremental
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

logger = logging.getLogger("ottla.configs")

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_ADDRESS_LIMITS = frozenset({"max.connections.per.ip", "max.connections.per.ip.overrides"})
_KEYS: Mapping[int, Mapping[str, ConfigKey]] = {TOPIC: TOPIC_KEYS, BROKER: BROKER_KEYS, GROUP: GROUP_KEYS}
_WORDS = {TOPIC: "topic", BROKER: "broker", GROUP: "group"}

_PAUSE_AFTER = 200
_CHANGES_AT_A_TIME = 200
"""Written together; other requests are served in between."""
_TOO_MANY_TO_DESCRIBE = (
    "The answer would be larger than socket.request.max.bytes. Ask for fewer resources at a time."
)

Edit = Callable[[Mapping[str, str]], dict[str, str]]
"""From what a resource has to what it is to have; raises `ApiError` to refuse."""


class ConfigAdministration(
    ClientLogging, Configuration, ControllerAccess, ImageAccess, ImageFollowing, SlicedWork, Protocol
):
    @property
    def node_id(self) -> int: ...


class Resource(Protocol):
    """What the requests have in common."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


# -- describing ---------------------------------------------------------------------------------------------


_Keys = frozenset[str] | None
"""The keys that are asked for; None is all."""


def describe_configs(
    broker: ConfigAdministration, request: DescribeConfigsRequest, context: RequestContext
) -> Steps[DescribeConfigsResponse]:
    wanted: dict[_Target, _Keys] = {}
    for number, resource in enumerate(request.resources):
        _want(wanted, resource)
        if not number % _PAUSE_AFTER:
            yield
    told: dict[tuple[int, _Keys], _Told] = {}
    bytes_left = broker.config["socket.request.max.bytes"]
    response = DescribeConfigsResponse()
    for (kind, name), keys in wanted.items():
        result = DescribeConfigsResult(resource_type=kind, resource_name=name, error_message="")
        try:
            _check_describable(broker, kind, name)
            # Most topics and groups have no settings of their own, and all of these look alike.
            plain = kind in (TOPIC, GROUP) and not broker.image.config(kind, name)
            all_told = told.get((kind, keys)) if plain else None
            if all_told is None:
                all_told = _Told(_describe(broker, kind, name, keys), request)
                if plain:
                    told[kind, keys] = all_told
            bytes_left -= all_told.size
            if bytes_left < 0:
                raise ApiError(ErrorCode.POLICY_VIOLATION, _TOO_MANY_TO_DESCRIBE)
            result.configs = all_told.configs
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        response.results.append(result)
        yield
    return response


def _want(wanted: dict[_Target, _Keys], resource: DescribeConfigsResource) -> None:
    """A resource that is named twice is answered once, with all keys that are asked for."""
    target = resource.resource_type, resource.resource_name
    keys = frozenset(resource.configuration_keys) if resource.configuration_keys else None
    if target in wanted:
        before = wanted[target]
        keys = None if before is None or keys is None else before | keys
    wanted[target] = keys


class _Told:
    """Entries as they are sent, and about how many bytes they take."""

    __slots__ = ("configs", "size")

    def __init__(self, entries: Iterable[Entry], request: DescribeConfigsRequest) -> None:
        self.configs = [
            _told(entry, request.include_synonyms, request.include_documentation) for entry in entries
        ]
        self.size = sum(
            20
            + len(each.name)
            + len(each.value or "")
            + len(each.documentation or "")
            + sum(5 + len(synonym.name) + len(synonym.value or "") for synonym in each.synonyms)
            for each in self.configs
        )


def _check_describable(broker: ConfigAdministration, kind: int, name: str) -> None:
    if kind == TOPIC:
        check_name(name)
        if name not in broker.image.topics:
            raise _no_topic(name)
    elif kind == GROUP:
        _check_named(name, "group")


def _describe(broker: ConfigAdministration, kind: int, name: str, wanted: _Keys) -> list[Entry]:
    if kind == TOPIC:
        return describe_topic(broker.config, broker.image.config(TOPIC, name), wanted)
    if kind == BROKER:
        if not name:
            return describe_cluster(broker.config, wanted)
        _check_is_here(broker.node_id, name)
        return describe_broker(broker.config, wanted)
    if kind == GROUP:
        return describe_group(broker.config, broker.image.config(GROUP, name), wanted)
    if kind == LOGGER:
        _check_named(name, "broker")
        _check_is_here(broker.node_id, name)
        return [
            Entry(n, level, [(n, level, Source.LOGGER)], kind=Type.UNKNOWN, doc="")
            for n, level in log_levels().items()
            if wanted is None or n in wanted
        ]
    raise _not_configurable(kind)


def _told(entry: Entry, with_synonyms: bool, with_doc: bool) -> DescribeConfigsResourceResult:
    is_logger = entry.source is Source.LOGGER
    synonyms = entry.layers if with_synonyms and not is_logger else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in synonyms],
        config_type=entry.type,
        documentation=entry.doc if with_doc or is_logger else None,
    )


# -- altering -----------------------------------------------------------------------------------------------


async def alter_configs(
    broker: ConfigAdministration, request: replacing.AlterConfigsRequest, context: RequestContext
) -> replacing.AlterConfigsResponse:
    def edit(resource: replacing.AlterConfigsResource) -> Edit:
        if resource.resource_type == LOGGER:
            raise _not_configurable(LOGGER)  # as in Kafka, only IncrementalAlterConfigs has them
        new = replacement((config.name, config.value) for config in resource.configs)
        return lambda _: new

    errors = await _alter(broker, request.resources, edit, request.validate_only, context)
    return replacing.AlterConfigsResponse(
        responses=[
            replacing.AlterConfigsResourceResponse(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in zip(request.resources, errors, strict=True)
        ]
    )


async def incremental_alter_configs(
    broker: ConfigAdministration, request: incremental.IncrementalAlterConfigsRequest, context: RequestContext
) -> incremental.IncrementalAlterConfigsResponse:
    def edit(resource: incremental.AlterConfigsResource) -> Edit:
        kind = resource.resource_type
        steps = [(config.name, config.config_operation, config.value) for config in resource.configs]
        if kind == LOGGER:
            return _log_level_edit(broker, resource.resource_name, steps, request.validate_only)
        keys = _KEYS.get(kind, {})
        return lambda present: edited(present, steps, keys, lambda name: _list_default(broker, kind, name))

    errors = await _alter(broker, request.resources, edit, request.validate_only, context)
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in zip(request.resources, errors, strict=True)
        ]
    )


async def _alter(
    broker: ConfigAdministration,
    resources: Sequence[R],
    edit_of: Callable[[R], Edit],
    validate_only: bool,
    context: RequestContext,
) -> list[ApiError | None]:
    """Change the resources, or find out whether they could be; the error of each, in their order."""
    if len(resources) > MAX_CHANGES:
        return [ApiError(ErrorCode.POLICY_VIOLATION, TOO_MANY_CHANGES)] * len(resources)
    errors, changes, places = await broker.in_slices(_changes(broker, resources, edit_of, context), context)
    if validate_only or not changes:
        return errors
    version, changed = 0, []
    for some in in_portions(list(changes), _CHANGES_AT_A_TIME):
        outcome = await broker.controller.write_configs({target: changes[target] for target in some})
        version = outcome.version
        for target, result in zip(some, outcome.results, strict=True):
            if isinstance(result, ApiError):
                errors[places[target]] = result
            else:
                changed.append(_described(*target))
        await asyncio.sleep(0)  # where nothing is to be written, nothing else gives way
    await broker.caught_up(version)
    if changed:
        text = "%s changed the configuration of %s"
        broker.client_log.info(logger, context.address, text, context.peer, listed(changed))
    return errors


_Target = tuple[int, str]
_Change = Callable[[Mapping[str, str]], Mapping[str, str | None]]


def _changes(
    broker: ConfigAdministration,
    resources: Sequence[R],
    edit_of: Callable[[R], Edit],
    context: RequestContext,
) -> Steps[tuple[list[ApiError | None], dict[_Target, _Change], dict[_Target, int]]]:
    """What is wrong with each resource, how to change the others, and where these stand in the request."""
    node_id = broker.node_id if context.forwarded_by is None else context.forwarded_by
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    errors: list[ApiError | None] = []
    changes: dict[_Target, _Change] = {}
    places: dict[_Target, int] = {}
    for place, resource in enumerate(resources):
        yield
        errors.append(None)
        try:
            kind, name = resource.resource_type, resource.resource_name
            if named[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The resource is named twice in the request.")
            edit = edit_of(resource)
            if kind == LOGGER:
                edit({})
                continue
            target = kind, _check_target(node_id, kind, name)
            change = _checked_change(broker, node_id, target, edit, context.address)
            change(broker.image.config(*target))  # refuse early what is refused in any case
            if kind == TOPIC and name not in broker.image.topics:
                raise _no_topic(name)
        except ApiError as error:
            errors[place] = error
        else:
            changes[target], places[target] = change, place
    return errors, changes, places


def _checked_change(
    broker: ConfigAdministration, node_id: int, target: tuple[int, str], edit: Edit, address: str
) -> Callable[[Mapping[str, str]], Mapping[str, str | None]]:
    """The edit with the checks of its kind of resource behind it. `node_id` is the broker that was asked."""
    kind, name = target

    def change(present: Mapping[str, str]) -> Mapping[str, str | None]:
        new = edit(present)
        changed = difference(present, new)
        if kind == TOPIC:
            validate_topic_config(new, broker.config)
        elif kind == GROUP:
            validate_group_config(new, broker.config)
        else:
            asked = {key: text for key, text in changed.items() if text is not None}
            validate_broker_config(asked, cluster_wide=not name)
            if _ADDRESS_LIMITS & changed.keys():
                stored = broker.image.config(BROKER, str(node_id) if not name else "")
                layers = (stored, new) if name else (new, stored)
                check_lets_in(broker.config.with_dynamic(*layers), address)
        return changed

    return change


def _check_target(node_id: int, kind: int, name: str) -> str:
    """The name under which the resource is kept; `ApiError` if there can be no such resource."""
    if kind == TOPIC:
        _check_named(name, "topic")
        check_name(name)
        return name
    if kind == BROKER:
        return str(_check_is_here(node_id, name)) if name else ""
    if kind == GROUP:
        _check_named(name, "group")
        return name
    raise _not_configurable(kind)


def _list_default(broker: ConfigAdministration, kind: int, name: str) -> list[str]:
    """What a list holds that the resource has not set itself."""
    if kind == TOPIC:
        return list(broker.config.topic_values[name] or ())
    return list(broker.config[name] or ()) if kind == BROKER else []


def _log_level_edit(
    broker: ConfigAdministration, name: str, steps: Sequence[Step], validate_only: bool
) -> Edit:
    """Log levels belong to this process alone, so they change here and now."""
    _check_named(name, "broker")
    _check_is_here(broker.node_id, name)
    check_no_twice(key for key, _, _ in steps)
    for key, operation, level in steps:
        if operation not in (Operation.SET, Operation.DELETE) or (
            operation == Operation.SET and level is None
        ):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{key}: a log level can only be set or deleted")
        check_log_level(key, level if operation == Operation.SET else None)

    def edit(_: Mapping[str, str]) -> dict[str, str]:
        for key, operation, level in () if validate_only else steps:
            set_log_level(key, level if operation == Operation.SET else None)
        return {}

    return edit


# -- what can be configured ---------------------------------------------------------------------------------


def _check_is_here(node_id: int, name: str) -> int:
    """The number of a broker, which must be the one that was asked: no other knows its configuration."""
    try:
        number = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"A broker is named by its number, not {name!r}.") from None
    if number != node_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"This is broker {node_id}; ask broker {number} itself.")
    return number


def _check_named(name: str, what: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"The name of the {what} must not be empty.")


def _no_topic(name: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.")


def _not_configurable(kind: int) -> ApiError:
    if kind == CLIENT_METRICS:
        return ApiError(ErrorCode.INVALID_REQUEST, "This broker does not collect metrics of clients.")
    return ApiError(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} cannot be configured.")


def _described(kind: int, name: str) -> str:
    return f"{_WORDS[kind]} {name}" if name else "all brokers"
