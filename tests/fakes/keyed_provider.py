"""A provider that chooses its answer by the request's API key."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from tests.chaos.forms import CHAT
from tests.fakes.provider import Respond, request_size, whole

REFUSED = whole(401, b'{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}')
SPENT = whole(
    429,
    b'{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}',
)
LIMITED = whole(
    429, b'{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}', headers={"retry-after": "20"}
)
_KEY = re.compile(rb"^authorization: bearer (\S*)\r$", re.IGNORECASE | re.MULTILINE)


class KeyedProvider:
    """Answers by key; unlisted keys get a good answer: `async with KeyedProvider({"sk-a": REFUSED}) as provider:`."""

    def __init__(self, answers: Mapping[str, Respond] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.answers = dict(answers or {})
        """Answer by key; may be changed at any time."""
        self.holds: dict[str, asyncio.Event] = {}
        """Event by key; a request with that key waits for it before it is answered."""
        self.keys: list[str] = []
        """Keys of the requests, in the order of arrival."""
        self.certificates: list[Any] = []
        """Client certificates that the peers have presented."""
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.certificates.append(writer.get_extra_info("peercert"))
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = b""
        while data := await reader.read(65536):
            received += data
            while (size := request_size(received)) is not None:
                request, received = received[:size], received[size:]
                found = _KEY.search(request)
                key = "" if found is None else found[1].decode()
                self.keys.append(key)
                if key in self.holds:
                    await self.holds[key].wait()
                for step in [self.answers[key]] if key in self.answers else CHAT.ok:
                    writer.write(step.data)
                await writer.drain()
