"""Who looks at pages of the operator's side, and listens to its events as they come.

Owns the wire side of both. Does not own what is expected of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import msgspec

from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.client import raw_request
from tests.tokens import BEARER

HOST = {"host": "localhost", **BEARER}

_View = TypeVar("_View")


async def look(url: str, path: str, headers: Mapping[str, str] | None = None) -> Reply:
    """GET, by the name of this machine."""
    return await ask(url, path, headers={**HOST, **(headers or {})}, method="GET")


async def view(url: str, path: str, kind: type[_View]) -> _View:
    """The page's answer as what it says it is."""
    reply = await look(url, path)
    assert reply.status == 200, reply.text
    return msgspec.json.decode(reply.body, type=kind)


class Listening:
    """`async with Listening(url) as reader:` server-sent events, one after the other."""

    def __init__(self, url: str, query: str = "", headers: Mapping[str, str] | None = None) -> None:
        self._connection = Connection(url)
        self._request = raw_request(f"/admin/events{query}", headers={**HOST, **(headers or {})}, method="GET")
        self._unread = b""

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        self.writer, self.reader = self._connection.writer, self._connection.reader
        self.writer.write(self._request)
        self.head = await self._connection.head()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._connection.__aexit__()

    async def block(self) -> dict[str, str]:
        """The next block's fields; a comment's is `""`. {} at a clean end."""
        while b"\n\n" not in self._unread:
            size = int(await self._line(), 16)
            if not size:
                return {}
            self._unread += await self._within(self.reader.readexactly(size))
            await self._line()
        block, _, self._unread = self._unread.partition(b"\n\n")
        return {name: value.lstrip() for name, _, value in (line.partition(":") for line in block.decode().split("\n"))}

    async def event(self) -> dict[str, Any]:
        """The next event's data, comments passed over."""
        while "data" not in (block := await self.block()):
            assert block, "the stream is at its end"
        data: dict[str, Any] = json.loads(block["data"])
        assert data["kind"] == block["event"]
        return data

    async def until(self, kind: str, **facts: object) -> list[dict[str, Any]]:
        """All events up to the next of this kind and with these facts."""
        heard = [await self.event()]
        while heard[-1]["kind"] != kind or not facts.items() <= heard[-1]["facts"].items():
            heard.append(await self.event())
        return heard

    async def _line(self) -> bytes:
        return await self._within(self.reader.readuntil(b"\r\n"))

    async def _within(self, reading: Any) -> bytes:
        async with asyncio.timeout(5):
            data: bytes = await reading
            return data
