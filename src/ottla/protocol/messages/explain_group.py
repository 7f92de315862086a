"""ExplainGroup: why a group rebalanced, as its coordinator remembers it.

Ours, not Kafka's, whose coordinator writes such things into its own log file only. The key lies far above
Kafka's, beside those of `log_state`. Asked of the group's coordinator. A member is told by its instance id
if it is static, else by its member id. A group that has not rebalanced since its coordinator started has no
entries; that is no error.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string


class ExplainGroupRequest(Request, api_key=1002, versions="0", flexible="0+"):
    group_id: str = string()


class ExplainedMember(Struct):
    name: str = string()
    partitions: int = int32()  # how many it has after the rebalance
    idle_reason: str | None = string(None, nullable="0+")  # why it has none


class ExplainedMove(Struct):
    topic: str = string()
    partition: int = int32()
    before: str | None = string(None, nullable="0+")  # null: no owner
    after: str | None = string(None, nullable="0+")  # null: no owner


class ExplainedRebalance(Struct):
    generation: int = int32()  # or the epoch, in the consumer protocol
    began_ms: int = int64()
    duration_ms: int = int64()
    causes: list[str] = array(string)
    protocol: str | None = string(None, nullable="0+")  # the assignor
    leader: str | None = string(None, nullable="0+")  # null where the broker decides
    members: list[ExplainedMember] = array(ExplainedMember)
    joined: list[str] = array(string)
    left: list[str] = array(string)
    moves: list[ExplainedMove] = array(ExplainedMove)


class ExplainGroupResponse(Response, api_key=1002, versions="0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(None, nullable="0+")
    rebalances: list[ExplainedRebalance] = array(ExplainedRebalance)  # the last one first
