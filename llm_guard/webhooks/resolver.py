"""Resolves the host names of webhooks in threads of their own.

uvloop resolves names in two threads for all (libuv's share for slow work), so that two webhooks with a name server that
hangs would have delayed every upstream.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from llm_guard.worker_thread import WorkerThread

_Key = tuple[str, int, int]
_Infos = list[tuple[Any, ...]]


class NameLookup(AbstractResolver):
    """Resolver with one thread for each name that is looked up, and never two for the same name."""

    def __init__(self) -> None:
        self._running: dict[_Key, asyncio.Future[_Infos]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolves a name. Raises OSError if there is no such name. If the waiter is cancelled, the thread goes on, and
        the next lookup of that name uses its result."""
        key = (host, port, family)
        found = self._running.get(key)
        if found is None:
            found = self._running[key] = WorkerThread("webhook name").run(_look_up, host, port, family)
            found.add_done_callback(lambda _: self._running.pop(key))
        return [_result(host, *info) for info in await asyncio.shield(found)]

    async def close(self) -> None:
        """Does nothing: there is nothing to close."""


def _look_up(host: str, port: int, family: int) -> _Infos:
    try:
        return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label of more than 63 characters
        raise OSError(str(error)) from None


def _result(host: str, family: int, _type: int, proto: int, _name: str, address: tuple[Any, ...]) -> ResolveResult:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address[0], port=address[1], family=family, proto=proto, flags=flags)
