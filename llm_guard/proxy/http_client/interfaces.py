"""Interfaces of the HTTP client: requests that wait for a connection, and upgraded connections."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Dialing(Protocol):
    """Callbacks for a request that waits for a connection."""

    def on_dialing(self) -> None:
        """Called when no connection is idle and a new one is being made."""

    def on_connected(self) -> None:
        """Called when there is a connection and the request is about to be sent."""


class Inbox(Protocol):
    """Receives the bytes of an upgraded connection."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...
    def feed_eof(self) -> None: ...


class Wire(Protocol):
    """Writes to an upgraded connection."""

    transport: asyncio.Transport

    async def write(self, data: bytes) -> None:
        """Writes; waits while the upstream's buffer is full. Raises ConnectionError if the upstream is gone."""
