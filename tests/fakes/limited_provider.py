"""A provider with a limit on requests a second, which it answers with 429 beyond it."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web


class LimitedProvider:
    """Answers chat completions with one body. Takes a second's worth of requests at once."""

    def __init__(self, answer: bytes, rate: float, takes_s: float) -> None:
        self._answer = answer
        self._rate = rate
        self._takes_s = takes_s
        self._tokens, self._at = rate, time.monotonic()
        self.requests = self.answered = self.refused = 0

    async def answer(self, _: web.Request) -> web.Response:
        """Handles one request."""
        self.requests += 1
        now = time.monotonic()
        self._tokens, self._at = min(self._rate, self._tokens + (now - self._at) * self._rate), now
        if self._tokens < 1:
            self.refused += 1
            return web.json_response({"error": {"message": "Rate limit reached", "type": "requests"}}, status=429)
        self._tokens -= 1
        await asyncio.sleep(self._takes_s)
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
        self.requests = self.answered = self.refused = 0
