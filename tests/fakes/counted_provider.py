"""A provider that takes its time for each call, and counts how many it has at once."""

from __future__ import annotations

import asyncio

from aiohttp import web


class CountedProvider:
    """Answers chat completions with one body."""

    def __init__(self, answer: bytes, takes_s: float) -> None:
        self._answer = answer
        self._takes_s = takes_s
        self.in_flight = self.most = self.answered = 0

    async def answer(self, _: web.Request) -> web.Response:
        """Handles one request."""
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self._takes_s)
        finally:
            self.in_flight -= 1
        self.answered += 1
        return web.Response(body=self._answer, content_type="application/json")

    async def start(self) -> tuple[web.AppRunner, str]:
        """Returns the server, which the caller cleans up, and its address."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    def begin(self) -> None:
        """Starts new counts."""
        self.most, self.answered = self.in_flight, 0
