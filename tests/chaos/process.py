"""Starts the gateway as users run it, `python -m llm_guard serve` in a process of its own, watches it and ends it.

Ends only processes that it has started.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.wire import fetch
from tests.fakes.waiting import eventually

_ROOT = Path(__file__).parents[2]


def write(path: Path, text: str) -> Path:
    """Writes a config file."""
    path.write_text(text)
    return path


async def start(
    path: Path, *arguments: str, env: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Process:
    """Starts the gateway without waiting for it to be ready. `within`: a command that runs another one."""
    command = (*within, sys.executable, "-m", "llm_guard", "serve", "-c", str(path), *arguments)
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", str(_ROOT)), "PYTHONUNBUFFERED": "1"}
    return await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env={**os.environ, **paths, **(env or {})}
    )


async def outcome_of(path: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a process that ends by itself within 20 s."""
    process = await start(path, *arguments)
    async with asyncio.timeout(20):
        _, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, error.decode()


@dataclass(slots=True)
class Served:
    """A gateway that has printed where it listens."""

    process: Process
    said: str
    """First line of standard error."""
    log: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Later lines of standard error."""

    @property
    def urls(self) -> list[str]:
        return [word for word in self.said.split() if word.startswith("http://")]

    @property
    def url(self) -> str:
        return self.urls[0]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def logged(self, event: str, count: int = 1) -> dict[str, Any]:
        """Waits for the `count`th log line of this event and returns it."""
        await eventually(lambda: len(self._lines(event)) >= count, within_s=10)
        return self._lines(event)[count - 1]

    async def exit_code(self, within_s: float = 10) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    def _lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]


@asynccontextmanager
async def serving(
    path: Path, text: str, *, env: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> AsyncIterator[Served]:
    """Runs a gateway with this config, written to `path`; kills it if the test has not ended it."""
    write(path, text)
    process = await start(path, env=env, within=within)
    assert process.stdout is not None
    assert process.stderr is not None
    reading: asyncio.Future[Any] | None = None
    try:
        async with asyncio.timeout(20):
            served = Served(process, (await process.stderr.readline()).decode())
        # The gateway prints its address before it handles signals and config changes: those work from the first turn of
        # its loop on.
        assert (await fetch(f"{served.urls[-1]}/healthz")).status == 200
        reading = asyncio.gather(_read_log(process.stdout, served), _read_complaints(process.stderr, served))
        yield served
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


async def _read_log(stream: asyncio.StreamReader, served: Served) -> None:
    async for line in stream:
        served.log.append(json.loads(line))


async def _read_complaints(stream: asyncio.StreamReader, served: Served) -> None:
    async for line in stream:
        served.complaints.append(line.decode())
