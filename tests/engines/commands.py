"""Runs commands and daemons of a test, and ends the daemons."""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

WITHIN_S = 30.0
_LOG_CHARS = 3000


async def output_of(*command: str, within_s: float = WITHIN_S) -> str:
    """Runs a command that must succeed."""
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    async with asyncio.timeout(within_s):
        said, _ = await process.communicate()
    assert process.returncode == 0, f"{' '.join(command)}: {said.decode(errors='replace')[-_LOG_CHARS:]}"
    return said.decode()


@asynccontextmanager
async def daemon(log: Path, *command: str, is_up: Callable[[], bool]) -> AsyncIterator[int]:
    """Runs a daemon, from when `is_up()` holds, and yields its PID. Ends it with SIGTERM."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=file, stderr=file)
        try:
            async with asyncio.timeout(WITHIN_S):
                while not is_up():
                    assert process.returncode is None, f"{command[0]} ended: {_end_of(log)}"
                    await asyncio.sleep(0.02)
            yield process.pid
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(WITHIN_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARS:]


async def until(is_so: Callable[[], Awaitable[object]], within_s: float = WITHIN_S) -> None:
    """Returns once `await is_so()` is true."""
    async with asyncio.timeout(within_s):
        while not await is_so():  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.05)


def unmount(path: Path) -> None:
    """Unmounts a file system that a daemon has left behind, if it has."""
    if path.is_mount() or path.is_file():
        subprocess.run(("umount", str(path)), check=False, capture_output=True)
