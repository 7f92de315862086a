"""The admin client for coroutines: each call of `Admin` in a thread, so that the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ottla.client.admin import Admin

P = ParamSpec("P")
T = TypeVar("T")


def _in_a_thread(
    method: Callable[Concatenate[Admin, P], T],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]]:
    async def call(self: AsyncAdmin, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.admin, *arguments, **named)

    update_wrapper(call, method)
    return call


class AsyncAdmin:
    """`Admin` with coroutines."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        *,
        client_id: str | None = None,
        timeout: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.admin = Admin(bootstrap_servers, client_id=client_id, timeout=timeout, config=config)

    create_topics = _in_a_thread(Admin.create_topics)
    create_topic = _in_a_thread(Admin.create_topic)
    delete_topics = _in_a_thread(Admin.delete_topics)
    list_topics = _in_a_thread(Admin.list_topics)
    describe_topics = _in_a_thread(Admin.describe_topics)
    add_partitions = _in_a_thread(Admin.add_partitions)
    delete_records = _in_a_thread(Admin.delete_records)
    topic_config = _in_a_thread(Admin.topic_config)
    broker_config = _in_a_thread(Admin.broker_config)
    alter_topic_config = _in_a_thread(Admin.alter_topic_config)
    alter_broker_config = _in_a_thread(Admin.alter_broker_config)
    list_groups = _in_a_thread(Admin.list_groups)
    describe_groups = _in_a_thread(Admin.describe_groups)
    delete_groups = _in_a_thread(Admin.delete_groups)
    group_offsets = _in_a_thread(Admin.group_offsets)
    alter_group_offsets = _in_a_thread(Admin.alter_group_offsets)
    group_lag = _in_a_thread(Admin.group_lag)
    offsets = _in_a_thread(Admin.offsets)
    describe_cluster = _in_a_thread(Admin.describe_cluster)

    async def close(self) -> None:
        await asyncio.to_thread(self.admin.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
