"""Binds a listener to its address, and computes its settings.

Owns sockets and file descriptors; `proxy.http_server.connection` handles the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

import structlog

from llm_guard.config import Config, Server
from llm_guard.proxy.http_server.connection import Listener, ListenerSettings

_log = structlog.get_logger("llm_guard.proxy.http_server.binding")

_BACKLOG = 2048
_SEND_BUFFER_BYTES = 1 << 17
_OWN_DESCRIPTORS = 64
_FEWEST_CONNECTIONS = 16
_MOST_CONNECTIONS = 100_000


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where a server listens."""

    host: str
    port: int
    is_shared: bool = False
    """Other processes of this user listen there, too: the kernel divides the connections (SO_REUSEPORT)."""


async def bound(listener: Listener, address: TcpAddress | Path) -> asyncio.Server:
    """Returns a server that is bound to its address, or to a UNIX socket for this user alone, and does not listen yet.
    Raises OSError."""
    loop = asyncio.get_running_loop()
    if isinstance(address, Path):
        server = await loop.create_unix_server(listener, address, backlog=_BACKLOG, start_serving=False)
        os.chmod(address, 0o600)
        return server
    server = await loop.create_server(
        listener, address.host, address.port, backlog=_BACKLOG, reuse_address=True,
        reuse_port=address.is_shared or None, start_serving=False,
    )  # fmt: skip
    for sock in server.sockets:
        # Accepted sockets inherit this. The kernel would let the buffer grow to megabytes and free it in steps as
        # large: a client that reads slowly would look like one that does not read.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return server


async def hold(host: str, port: int) -> asyncio.Server:
    """Returns a server that holds an address for other processes of this user and never listens. Raises OSError if
    another program has it. Only after this exclusive bind may it be shared: with SO_REUSEPORT from the start, a second
    gateway on the same port would take a part of the connections, and neither would notice (Linux; socket(7))."""
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, reuse_address=True, start_serving=False
    )
    for sock in server.sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return server


async def listen(server: asyncio.Server) -> None:
    """Starts listening. Raises OSError if another process has begun to listen since the address was bound: uvloop does
    not report that."""
    await server.start_serving()
    for sock in server.sockets:
        try:
            is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except ValueError:  # the socket is closed by now
            is_listening = 0
        if not is_listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def address_of(server: asyncio.Server, scheme: str) -> str:
    """Returns the URL of a server: `http://HOST:PORT`."""
    host, port, *_ = server.sockets[0].getsockname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listener_settings(config: Config) -> ListenerSettings:
    """Returns the listener's settings by the config, within what the machine allows."""
    rules = config.server
    return ListenerSettings(_max_connections(rules), rules.head_timeout, rules.body_timeout, rules.keep_alive)


def _max_connections(rules: Server) -> int:
    """Returns the connection limit by the config, within the file descriptors. libuv would reset a connection that it
    cannot accept for want of a descriptor; with this limit a new connection replaces an idle one instead."""
    descriptors = _raised_descriptor_limit() - _OWN_DESCRIPTORS
    if rules.max_connections is None:  # a call takes two descriptors: client and provider
        return max(_FEWEST_CONNECTIONS, min(descriptors // 2, _MOST_CONNECTIONS))
    allowed = max(_FEWEST_CONNECTIONS, descriptors)
    if rules.max_connections > allowed:
        remedy = "raise the process's limit on open files (ulimit -n), or lower server.max_connections"
        _log.warning("server.max_connections is more than the open files allow", limit=allowed, remedy=remedy)
    return min(rules.max_connections, allowed)


def _raised_descriptor_limit() -> int:
    """Raises the process's limit on open files to the hard limit, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
