"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31): there are no access rules here yet.

Answered as Kafka answers without an authorizer: SECURITY_DISABLED, once for each rule or filter in a request.
As in Kafka, a request whose numbers say "unknown" (0) where a kind is wanted cannot be read at all.
"""

from __future__ import annotations

from ottla.broker.connection import Refused
from ottla.broker.dispatch import RequestContext
from ottla.broker.request_scheduler import Steps
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

_PAUSE_AFTER = 500
NO_AUTHORIZER = "This broker has no authorizer: everybody may do everything, and there are no rules."


def describe_acls(
    broker: object, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    _refuse_unknown(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(
    broker: object, request: CreateAclsRequest, context: RequestContext
) -> Steps[CreateAclsResponse]:
    for number, rule in enumerate(request.creations):
        _refuse_unknown(rule.resource_type, rule.resource_pattern_type, rule.operation, rule.permission_type)
        if not number % _PAUSE_AFTER:
            yield
    refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refusal] * len(request.creations))


def delete_acls(
    broker: object, request: DeleteAclsRequest, context: RequestContext
) -> Steps[DeleteAclsResponse]:
    for number, rule in enumerate(request.filters):
        _refuse_unknown(
            rule.resource_type_filter, rule.pattern_type_filter, rule.operation, rule.permission_type
        )
        if not number % _PAUSE_AFTER:
            yield
    refusal = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))


def _refuse_unknown(*kinds: int) -> None:
    if 0 in kinds:
        raise Refused("an access rule of unknown kind")
