"""Scopes of `TimeLimit`, nested and ended in any order, behave like those of `asyncio.timeout`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.clock import SystemClock, TimeLimit
from tests.effort import repeated

Step = str | int
"""`leave`: the task is cancelled; `done`: the body's wait is over; `run`: all tasks run; a number: the deadline of
that scope passes, 0 is the outermost."""


@dataclass
class Scope:
    manager: AbstractAsyncContextManager[object]
    end: Callable[[], None]
    """Makes its deadline pass."""
    cause_of: Callable[[BaseException], BaseException | None]
    """Returns the reported cause of an error."""
    is_open: bool = False


class _Entered:
    """Adapts a limit to `async with`, like asyncio's scopes."""

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit

    async def __aenter__(self) -> TimeLimit:
        return self._limit.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.__exit__(kind, error, trace)


def own() -> Scope:
    limit = SystemClock().limit()
    return Scope(_Entered(limit), limit._end, _cause)


def standard() -> Scope:
    scope = asyncio.timeout(None)
    return Scope(scope, scope._on_timeout, _cause_or_context)  # type: ignore[attr-defined]  # what its timer calls


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__


def _cause_or_context(error: BaseException) -> BaseException | None:
    """Early releases of Python 3.11 set no cause; the context is the same error there."""
    is_unnamed = isinstance(error, TimeoutError) and error.__cause__ is None
    return error.__context__ if is_unnamed else error.__cause__


@dataclass
class Body:
    """A task in nested scopes, and a record of how they ended."""

    scopes: list[Scope]
    catches: frozenset[int]
    """Levels at which a timeout or cancellation is caught, after which the body waits again."""
    said: list[str] = field(default_factory=list)
    is_there: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, level: int = 0) -> None:
        if level == len(self.scopes):
            await self.is_there.wait()
            return
        scope = self.scopes[level]
        try:
            async with scope.manager:
                scope.is_open = True
                try:
                    await self._within(level)
                finally:
                    scope.is_open = False
        except BaseException as error:
            self.said.append(f"{level} {type(error).__name__} of {type(scope.cause_of(error)).__name__} {_count()}")
            raise
        self.said.append(f"{level} well {_count()}")

    async def _within(self, level: int) -> None:
        try:
            await self.run(level + 1)
        except (TimeoutError, asyncio.CancelledError):
            if level not in self.catches:
                raise
            await self.is_there.wait()


def _count() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def told(new_scope: Callable[[], Scope], levels: int, catches: frozenset[int], steps: list[Step]) -> list[str]:
    body = Body([new_scope() for _ in range(levels)], catches)
    task = asyncio.ensure_future(body.run())
    await asyncio.sleep(0)
    for step in [*steps, "done"]:
        match step:
            case "leave":
                task.cancel()
            case "done":
                body.is_there.set()
            case int():
                scope = body.scopes[step % levels]
                if scope.is_open:
                    scope.is_open = False  # a deadline passes only once
                    scope.end()
            case _:
                for _ in range(3):
                    await asyncio.sleep(0)
    await asyncio.wait([task])
    body.said.append("cancelled" if task.cancelled() else repr(task.exception()))
    return body.said


steps = st.lists(st.sampled_from(["leave", "done", "run", "run", 0, 1, 2]), max_size=8)


@settings(derandomize=True, deadline=None, max_examples=repeated(400))
@given(st.integers(1, 3), st.frozensets(st.integers(0, 2)), steps)
def test_scopes_end_as_those_of_asyncio_do(levels: int, catches: frozenset[int], steps: list[Step]) -> None:
    assert asyncio.run(told(own, levels, catches, steps)) == asyncio.run(told(standard, levels, catches, steps))
