from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from llm_guard.proxy.wakeup import Wakeup


class Waiting:
    """A task that awaits the same wakeup again and again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wakeup = Wakeup(self.loop)
        self.rounds = 0
        self.task = self.loop.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self.wakeup
            self.rounds += 1

    async def rounds_after(self, *calls: str) -> list[int]:
        """Calls methods of the wakeup from the event loop; returns the rounds after each, in the same callback."""
        seen: list[int] = []

        def call() -> None:
            for name in calls:
                getattr(self.wakeup, name)()
                seen.append(self.rounds)

        self.loop.call_soon(call)
        await asyncio.sleep(0)
        return seen


@pytest.fixture
async def waiting() -> Waiting:
    waiting = Waiting()
    await asyncio.sleep(0)
    return waiting


async def test_task_goes_on_within_the_call(waiting: Waiting) -> None:
    assert await waiting.rounds_after("wake", "wake") == [1, 2]


async def test_task_goes_on_in_the_next_iteration(waiting: Waiting) -> None:
    assert await waiting.rounds_after("wake_soon", "wake_soon") == [0, 0]
    await asyncio.sleep(0)
    assert waiting.rounds == 1


async def test_task_that_is_woken_by_another_goes_on_in_the_next_iteration(waiting: Waiting) -> None:
    waiting.wakeup.wake()
    assert waiting.rounds == 0
    await asyncio.sleep(0)
    assert waiting.rounds == 1
    assert await waiting.rounds_after("wake") == [2]


async def test_nothing_happens_without_a_task_that_waits() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    wakeup.wake()
    wakeup.wake_soon()
    with pytest.raises(TimeoutError):  # it is not remembered
        async with asyncio.timeout(0):
            await wakeup


@pytest.mark.parametrize("is_woken_first", [False, True])
async def test_cancelled_task_raises(waiting: Waiting, is_woken_first: bool) -> None:
    if is_woken_first:
        waiting.wakeup.wake_soon()
    waiting.task.cancel("why")
    with pytest.raises(asyncio.CancelledError, match="why"):
        await waiting.task
    assert waiting.rounds == 0


async def test_task_that_was_cancelled_before_it_waits_raises() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await wakeup

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())


async def test_cancelled_wait_can_be_repeated(waiting: Waiting) -> None:
    waiting.task.cancel()
    await asyncio.wait((waiting.task,))
    waiting.task = waiting.loop.create_task(waiting._run())
    await asyncio.sleep(0)
    assert await waiting.rounds_after("wake") == [1]


async def test_error_of_the_task_stays_its_own() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())

    async def run() -> None:
        await wakeup
        raise RuntimeError("its own")

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(wakeup.wake)
    with pytest.raises(RuntimeError, match="its own"):
        await task


@pytest.mark.parametrize("wake", ["wake", "wake_soon"])
async def test_task_goes_on_in_its_own_context(waiting: Waiting, wake: str) -> None:
    name: ContextVar[str] = ContextVar("name", default="nothing")
    seen: list[str] = []
    wakeup = Wakeup(waiting.loop)

    async def run() -> None:
        name.set("the task's")
        await wakeup
        seen.append(name.get())

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    waiting.loop.call_soon(getattr(wakeup, wake))
    await task
    assert seen == ["the task's"]
    assert name.get() == "nothing"
