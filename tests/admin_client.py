"""A client of the admin API: fetches pages and reads server-sent events as they arrive."""

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
    """Sends a GET with a Host header that the admin API accepts."""
    return await ask(url, path, headers={**HOST, **(headers or {})}, method="GET")


async def view(url: str, path: str, kind: type[_View]) -> _View:
    """Fetches a page that must answer 200 and decodes it as `kind`."""
    reply = await look(url, path)
    assert reply.status == 200, reply.text
    return msgspec.json.decode(reply.body, type=kind)


class Listening:
    """Reads server-sent events one by one: `async with Listening(url) as reader:`."""

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
        """Returns the fields of the next block; a comment is under the key `""`. Returns {} when the stream ends
        cleanly."""
        while b"\n\n" not in self._unread:
            size = int(await self._line(), 16)
            if not size:
                return {}
            self._unread += await self._within(self.reader.readexactly(size))
            await self._line()
        block, _, self._unread = self._unread.partition(b"\n\n")
        return {name: value.lstrip() for name, _, value in (line.partition(":") for line in block.decode().split("\n"))}

    async def event(self) -> dict[str, Any]:
        """Returns the data of the next event and skips comments."""
        while "data" not in (block := await self.block()):
            assert block, "the stream is at its end"
        data: dict[str, Any] = json.loads(block["data"])
        assert data["kind"] == block["event"]
        return data

    async def until(self, kind: str, **facts: object) -> list[dict[str, Any]]:
        """Returns all events up to and including the next one of this kind with these facts."""
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
