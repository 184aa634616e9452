"""How a listener comes to its address, and by which settings.

Owns sockets and file descriptors. Does not own what a listener does with its connections (`gateway.listener`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket

import structlog

from llm_guard.config import Config, Server
from llm_guard.gateway.listener import Listener, ListenerSettings

_log = structlog.get_logger("llm_guard.gateway.listening")

_BACKLOG = 2048
_SEND_BUFFER_BYTES = 1 << 17
_OWN_DESCRIPTORS = 64
_FEWEST_CONNECTIONS = 16
_MOST_CONNECTIONS = 100_000


async def bound(listener: Listener, host: str, port: int) -> asyncio.Server:
    """A server that has its address and does not listen yet. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        listener, host, port, backlog=_BACKLOG, reuse_address=True, start_serving=False
    )  # fmt: skip
    for sock in server.sockets:
        # What is accepted inherits it. The kernel would let this grow to megabytes, and free it in steps as large:
        # nobody could tell a client that reads slowly from one that does not read.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return server


async def listen(server: asyncio.Server) -> None:
    """Raises OSError where another has begun to listen since the address was bound: uvloop says nothing of it."""
    await server.start_serving()
    for sock in server.sockets:
        try:
            is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except ValueError:  # it is closed by now
            is_listening = 0
        if not is_listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def address_of(server: asyncio.Server, scheme: str) -> str:
    """`http://HOST:PORT`."""
    host, port, *_ = server.sockets[0].getsockname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listener_settings(config: Config) -> ListenerSettings:
    """As the config has them, within what the machine allows."""
    rules = config.server
    return ListenerSettings(_max_connections(rules), rules.head_timeout, rules.body_timeout, rules.keep_alive)


def _max_connections(rules: Server) -> int:
    """As many as the config says and the file descriptors allow. A connection that cannot be accepted for want of a
    descriptor would be reset by libuv: instead, a new one takes the place of an idle one."""
    descriptors = _raised_descriptor_limit() - _OWN_DESCRIPTORS
    if rules.max_connections is None:  # a call takes two descriptors: its client's and its provider's
        return max(_FEWEST_CONNECTIONS, min(descriptors // 2, _MOST_CONNECTIONS))
    allowed = max(_FEWEST_CONNECTIONS, descriptors)
    if rules.max_connections > allowed:
        remedy = "raise the process's limit on open files (ulimit -n), or lower server.max_connections"
        _log.warning("server.max_connections is more than the open files allow", used=allowed, remedy=remedy)
    return min(rules.max_connections, allowed)


def _raised_descriptor_limit() -> int:
    """How many files the process may open, after raising that to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
