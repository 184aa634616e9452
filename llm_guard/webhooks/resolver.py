"""Resolves the host names of webhooks in threads of their own.

uvloop resolves names in two threads for all (libuv's share for slow work), so that two webhooks with a name server that
hangs would have delayed every upstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

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
            loop = asyncio.get_running_loop()
            found = self._running[key] = loop.create_future()
            found.add_done_callback(lambda done: self._forget(key, done))
            # A daemon thread: one that hangs must not keep the process from ending.
            threading.Thread(target=_look_up, args=(key, found, loop), name="webhook name", daemon=True).start()
        return [_result(host, *info) for info in await asyncio.shield(found)]

    async def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _forget(self, key: _Key, done: asyncio.Future[_Infos]) -> None:
        del self._running[key]
        done.exception()  # marks the exception as retrieved, even if no waiter is left


def _look_up(key: _Key, found: asyncio.Future[_Infos], loop: asyncio.AbstractEventLoop) -> None:
    host, port, family = key
    try:
        settle = partial(found.set_result, socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM))
    except OSError as error:
        settle = partial(found.set_exception, error)
    except UnicodeError as error:  # a label of more than 63 characters
        settle = partial(found.set_exception, OSError(str(error)))
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(settle)


def _result(host: str, family: int, _type: int, proto: int, _name: str, address: tuple[Any, ...]) -> ResolveResult:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address[0], port=address[1], family=family, proto=proto, flags=flags)
