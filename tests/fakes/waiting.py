"""Waits in real time for something that another task or a socket causes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(is_so: Callable[[], object], within_s: float = 5.0) -> None:
    """Returns once `is_so()` is true, checking each millisecond; raises TimeoutError after `within_s`."""
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.001)
