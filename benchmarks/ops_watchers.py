"""`python -m benchmarks.ops_watchers URL [TOKEN]`: reads a gateway like a scraper, a dashboard and a reader of events.

Reports that it watches once each has had its first response. For each line on standard input it writes one JSON object
of counts to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import aiohttp

PAGES = {
    "/metrics": 5.0,
    "/admin/metrics": 1.0,
    "/admin/calls?failed=true&limit=100": 1.5,
    "/admin/alerts": 3.0,
    "/admin/history": 5.0,
    "/admin/history?span=24h": 60.0,
    "/admin/incidents": 2.0,
}
"""Seconds between two requests: for Prometheus as in config/prometheus, for the dashboard its own."""
EVENTS = "/admin/events?since=0"


@dataclass(slots=True)
class Seen:
    """Counts of what was read."""

    answers: dict[str, int] = field(default_factory=dict)
    events: int = 0
    """Blocks of the stream, heartbeats included."""
    failed: int = 0
    complaint: str = ""
    """The first failure."""

    def fail(self, path: str, why: object) -> None:
        self.failed += 1
        self.complaint = self.complaint or f"{path}: {why}"


async def watch(url: str, token: str | None) -> None:
    """Runs until the process is ended."""
    seen = Seen()
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    async with aiohttp.ClientSession(url, headers=headers) as session, asyncio.TaskGroup() as group:
        begun = [asyncio.Event() for _ in range(len(PAGES) + 1)]
        for (path, every_s), first in zip(PAGES.items(), begun, strict=False):
            group.create_task(_poll(session, path, every_s, first, seen))
        group.create_task(_listen(session, begun[-1], seen))
        await asyncio.gather(*(each.wait() for each in begun))
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _tell, seen)
        print(f"watches on {url}", file=sys.stderr, flush=True)


async def _poll(session: aiohttp.ClientSession, path: str, every_s: float, first: asyncio.Event, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    due_at = loop.time()
    while True:
        try:
            async with session.get(path) as reply:
                await reply.read()
                if reply.status == 200:
                    seen.answers[path] = seen.answers.get(path, 0) + 1
                else:
                    seen.fail(path, reply.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            seen.fail(path, repr(error))
        first.set()
        due_at += every_s
        await asyncio.sleep(max(0.0, due_at - loop.time()))


async def _listen(session: aiohttp.ClientSession, first: asyncio.Event, seen: Seen) -> None:
    no_end = aiohttp.ClientTimeout(total=None)
    with suppress(asyncio.CancelledError):
        try:
            async with session.get(EVENTS, timeout=no_end) as reply:
                async for line in reply.content:
                    seen.events += line == b"\n"
                    first.set()
                seen.fail(EVENTS, f"{reply.status}, and ended")
        except aiohttp.ClientError as error:
            seen.fail(EVENTS, repr(error))
        first.set()


def _tell(seen: Seen) -> None:
    if os.read(sys.stdin.fileno(), 1 << 12):
        print(json.dumps(asdict(seen)), file=sys.stderr, flush=True)
    else:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
