"""Interfaces of the HTTP client: requests that wait for a connection, and upgraded connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from llm_guard.proxy.request_body.interfaces import FileBody


class Dialing(Protocol):
    """Callbacks for a request that waits for a connection."""

    def on_dialing(self) -> None:
        """Called when no connection is idle and a new one is being made."""

    def on_connected(self) -> None:
        """Called when there is a connection and the request is about to be sent."""

    def on_authorizing(self) -> None:
        """Called when the request cannot be authorised at once: credentials are on their way, or a large body has to be
        read for its signature."""

    def on_authorized(self) -> None:
        """Called when the request is authorised, after `on_authorizing`."""


class RequestAuthorizer(Protocol):
    """Adds a cloud's credentials to requests."""

    async def authorize(
        self,
        method: str,
        host: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | FileBody,
        dialing: Dialing | None,
    ) -> tuple[str, list[tuple[str, str]]]:
        """Returns target and headers with credentials, which replace any others. Raises UpstreamError (CREDENTIALS)."""

    def note_refusal(self, headers: Sequence[tuple[str, str]]) -> bool:
        """Takes the headers of a 401 or 403. Returns True if the same request, authorised again, may be accepted."""


class Inbox(Protocol):
    """Receives the bytes of an upgraded connection."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...
    def feed_eof(self) -> None: ...


class Wire(Protocol):
    """Writes to an upgraded connection."""

    transport: asyncio.Transport

    async def write(self, data: bytes) -> None:
        """Writes; waits while the upstream's buffer is full. Raises ConnectionError if the upstream is gone."""
