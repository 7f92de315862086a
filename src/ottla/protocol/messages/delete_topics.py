"""DeleteTopics: remove topics with all they hold.

Versions: up to 5 topics are given as a list of names, from 6 on each by its name or its id. 4 brought the
flexible encoding, 5 error messages and throttling.
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string, uuid


class DeleteTopicState(Struct):
    name: str | None = string(None, nullable="0+")  # null when the topic is given by id
    topic_id: bytes = uuid()


class DeleteTopicsRequest(Request, api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+")
    topic_names: list[str] = array(string, versions="0-5")
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+")  # null when an unknown id was given
    topic_id: bytes = uuid(versions="6+")
    error_code: int = int16()
    error_message: str | None = string(None, versions="5+", nullable="5+")


class DeleteTopicsResponse(Response, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
