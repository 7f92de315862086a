"""Frames: the envelope around a message.

    request   int32 size | int16 api key | int16 version | int32 correlation id | nullable string client id
              | tagged fields, if the version is flexible | body
    response  int32 size | int32 correlation id | tagged fields, if the version is flexible | body

The size counts what follows it. `framing` deals with it; the functions here that take a
frame take it without its size. The client id is an old-style string in every version, so that any broker can
read the header of any request. The response to ApiVersions never has tagged fields, so that any client can
read it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

from ottla.protocol.apis import API_VERSIONS, APIS, Api
from ottla.protocol.codec import Malformed, decoder, encode
from ottla.protocol.compiler import skip_tags
from ottla.protocol.schema import Request, Response

_REQUEST = Struct(">hhih")  # api key, version, correlation id, length of the client id
_REQUEST_HEAD = Struct(">ihhih")  # the same behind the size
_RESPONSE = Struct(">ii")  # size, correlation id
_RESPONSE_FLEXIBLE = Struct(">iib")  # and no tagged fields
_CORRELATION_ID = Struct(">i")
_COPIED = 64 * 1024  # a part up to this size is put behind the header by copying it


class RequestHeader(NamedTuple):
    """What stands before a request's body, and where the body starts in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


class UnsupportedVersion(Exception):
    """An api key or version that is not in our table. `header` is what could be read: its `body_start` is 0,
    since the end of the header of an unknown version is unknown."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"api key {header.api_key} version {header.api_version} is not supported")
        self.header = header


def parse_request_header(frame: memoryview) -> RequestHeader:
    """The header of the request in `frame`. UnsupportedVersion if it is one that is not in our table."""
    try:
        api_key, version, correlation_id, length = _REQUEST.unpack_from(frame)
        end = len(frame)
        position = 10
        client_id = None
        if length >= 0:
            position += length
            if position > end:
                raise Malformed("request header: the client id is longer than the frame")
            client_id = frame[10:position].tobytes().decode()
        elif length != -1:
            raise Malformed(f"request header: the client id has the length {length}")
        api = APIS.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            raise UnsupportedVersion(RequestHeader(api_key, version, correlation_id, client_id, 0))
        if version >= api.flexible_from:
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags, end)
    except (struct_error, IndexError):
        raise Malformed(f"request header: cut off, {len(frame)} bytes are too few") from None
    except UnicodeDecodeError:
        raise Malformed("request header: the client id is not UTF-8") from None
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def response_frame(api: Api, version: int, correlation_id: int, parts: list[Any]) -> list[Any]:
    """Size and header put before the parts of an encoded response."""
    size = sum(map(len, parts))
    if version >= api.flexible_from and api.key != API_VERSIONS:
        head = _RESPONSE_FLEXIBLE.pack(size + 5, correlation_id, 0)
    else:
        head = _RESPONSE.pack(size + 4, correlation_id)
    if not parts or len(parts[0]) > _COPIED:
        return [head, *parts]
    return [head + parts[0], *parts[1:]]


def request_frame(request: Request, version: int, correlation_id: int, client_id: str | None) -> list[Any]:
    """A request as the parts of a frame, size included."""
    parts = encode(request, version)
    name = b"" if client_id is None else client_id.encode()
    tail = b"\0" if version in request.flexible else b""
    size = 10 + len(name) + len(tail) + sum(map(len, parts))
    length = -1 if client_id is None else len(name)
    head = _REQUEST_HEAD.pack(size, request.api_key, version, correlation_id, length)
    return [b"".join((head, name, tail, parts[0])), *parts[1:]]


def parse_response(api: Api, version: int, frame: memoryview) -> tuple[int, Response]:
    """The correlation id and the body of the response in `frame`."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        position = 4
        if api.response_header_version(version):
            position = skip_tags(frame, 5, frame[4], len(frame))
    except (struct_error, IndexError):
        raise Malformed(f"response header: cut off, {len(frame)} bytes are too few") from None
    response: Response = decoder(api.response, version)(frame, position)
    return correlation_id, response
