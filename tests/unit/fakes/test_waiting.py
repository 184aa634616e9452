from __future__ import annotations

import asyncio

import pytest

from tests.fakes.waiting import eventually


async def test_eventually_returns_once_it_is_so() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    await eventually(event.is_set)
    assert event.is_set()


async def test_eventually_gives_up() -> None:
    with pytest.raises(TimeoutError):
        await eventually(lambda: False, within_s=0.01)
