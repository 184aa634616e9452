"""Captures requests and responses byte for byte: those that an SDK sent, a provider received, or a raw caller may
send."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.client import raw_request
from tests.fakes.provider import request_size

CHANGED = frozenset({"host", "connection"})
"""Headers that belong to one connection and are not compared."""
_NO_BODY = ("content-length", "0")
"""Means the same as no content-length (RFC 9112, section 6.3): an HTTP client may add it to a DELETE."""


@dataclass(frozen=True, slots=True)
class Wired:
    """A message as it was on the wire."""

    first_line: str
    headers: tuple[tuple[str, str], ...]
    """Lower-case names, sorted, without those of `CHANGED`."""
    body: bytes

    def values(self, name: str) -> list[str]:
        """Returns every value of a header."""
        return [value for key, value in self.headers if key == name]


def wired(message: bytes) -> Wired:
    """Parses a request, or a response with a content-length."""
    head, _, body = message.partition(b"\r\n\r\n")
    first_line, *lines = head.decode().split("\r\n")
    pairs = [tuple(line.split(": ", 1)) for line in lines]
    return Wired(first_line, _headers([(name, value) for name, value in pairs]), body)


def _headers(pairs: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    lower = [(name.lower(), value) for name, value in pairs]
    return tuple(sorted(pair for pair in lower if pair[0] not in CHANGED and pair != _NO_BODY))


class Tap:
    """Records every request of an SDK's HTTP client; pass it as `event_hooks=tap.hooks`."""

    def __init__(self) -> None:
        self.sent: list[Wired] = []

    @property
    def hooks(self) -> Any:
        return {"request": [self._keep]}

    async def _keep(self, request: Any) -> None:
        body = await request.aread()
        pairs = [(name.decode(), value.decode()) for name, value in request.headers.raw]
        first_line = f"{request.method} {request.url.raw_path.decode()} HTTP/1.1"
        self.sent.append(Wired(first_line, _headers(pairs), body))


async def exchange(
    url: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, method: str = "POST"
) -> Wired:
    """Sends one request over a plain socket to `url` and reads a response that has a content-length."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(raw_request(target, body, headers, method))
    received = b""
    async with asyncio.timeout(10):
        while (size := request_size(received)) is None:
            more = await reader.read(65_536)
            assert more, f"the connection ended after {received!r}"
            received += more
    writer.close()
    await writer.wait_closed()
    assert size == len(received)
    return wired(received)
