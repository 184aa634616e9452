"""Load generator: calls at a fixed rate (open loop), or as fast as the server responds (closed loop).

Only sends calls; responses are judged in `load_call` and summed up in `load_result`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from llm_guard.mock.exchange import MockDialect
from llm_guard.mock.load_call import LoadTarget, call, open_session
from llm_guard.mock.load_result import FinishedCall, LoadResult, sum_up
from llm_guard.mock.load_retries import SdkRetries

Progress = Callable[[int, int], None]
"""Called after each call with the number of finished calls and the number planned."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """An open-loop run; either `seconds` or `calls` sets its length. Raises ValueError."""

    url: str
    """Base URL, with `/v1` or without."""
    models: tuple[str, ...]
    """Each call draws one with equal probability; none: the payloads have their own."""
    rate_per_s: float
    seconds: float | None = None
    calls: int | None = None
    concurrency: int = 1000
    """Maximum number of calls in flight; a call that is due above it counts as `not_sent`."""
    stream: bool = False
    dialect: MockDialect = "openai"
    headers: Mapping[str, str] | None = None
    timeout_s: float = 60.0
    """Timeout of each request; a call without retries is one request."""
    retries: int = 0
    """The client's own retries, as in the official SDKs: 2 is their default."""
    patience_s: float | None = None
    """Retries for this long, without a limit on the number, like an application that needs its response."""
    seed: int = 0
    text: str | None = None
    """The complete text that each stream must contain; None: any."""
    call_ids: str = ""
    """Prefix of the calls' ids, by which the mock provider decides which requests fail; empty: no ids."""
    payloads: tuple[Mapping[str, Any], ...] = ()
    """Request bodies, sent in turns; none: a short request."""
    ramp_s: float = 0.0
    """Seconds in which the rate grows evenly from 0."""

    def __post_init__(self) -> None:
        has_models = self.models or (self.payloads and all("model" in payload for payload in self.payloads))
        if not has_models or self.rate_per_s <= 0 or self.concurrency < 1:
            raise ValueError("a load needs a model, a rate > 0 and a concurrency of at least 1")
        if (self.seconds is None) == (self.calls is None):
            raise ValueError("a load needs either seconds or calls")

    def planned(self) -> int:
        """Number of calls in the run."""
        if self.calls is not None:
            return self.calls
        seconds = self.seconds or 0.0
        if seconds < self.ramp_s:
            return round(self.rate_per_s * seconds**2 / (2 * self.ramp_s))
        return round(self.rate_per_s * (seconds - self.ramp_s / 2))

    def due_s(self, index: int) -> float:
        """Seconds from the start of the run until a call, counted from 0, is due."""
        in_ramp = self.rate_per_s * self.ramp_s / 2
        if index < in_ramp:
            return math.sqrt(2 * self.ramp_s * index / self.rate_per_s)
        return self.ramp_s + (index - in_ramp) / self.rate_per_s

    def target(self) -> LoadTarget:
        retries = None
        if self.retries or self.patience_s is not None:
            retries = SdkRetries(self.retries, self.seed, self.patience_s)
        return LoadTarget(self.url, self.dialect, self.stream, self.headers, self.timeout_s, retries, self.text)


def key_headers(key: str, dialect: MockDialect) -> dict[str, str]:
    """Returns the header in which clients of this dialect send their key."""
    return {"x-api-key": key} if dialect == "anthropic" else {"authorization": f"Bearer {key}"}


async def run_load(plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
    """Sends the planned calls at fixed intervals; returns when the last one has ended."""
    run = LoadRun(plan, progress)
    await run.send_all()
    return run.result()


async def run_calls(plan: LoadPlan, progress: Progress | None = None) -> list[FinishedCall]:
    """Like `run_load`, but returns the calls in the order in which they ended."""
    run = LoadRun(plan, progress)
    await run.send_all()
    return run.ended


class LoadRun:
    """An open-loop run; `result` sums up what has ended so far, also after a cancelled `send_all`."""

    def __init__(self, plan: LoadPlan, progress: Progress | None = None) -> None:
        self.ended: list[FinishedCall] = []
        """In the order in which they ended."""
        self.started_at = 0.0
        """Monotonic seconds."""
        self._plan = plan
        self._progress = progress
        self._planned = plan.planned()
        self._in_flight = 0
        self._ended_at = 0.0
        self._sent_late_s = 0.0

    async def send_all(self) -> None:
        """Sends the planned calls at fixed intervals; returns when the last one has ended."""
        plan, target, dice = self._plan, self._plan.target(), Random(self._plan.seed)
        self.started_at = time.monotonic()
        try:
            async with open_session(target) as session, asyncio.TaskGroup() as calls:
                for index in range(self._planned):
                    due_at = self.started_at + plan.due_s(index)
                    # Yields even when late: otherwise the loop would send in bursts and read nothing.
                    await asyncio.sleep(max(0.0, due_at - time.monotonic()))
                    model = dice.choice(plan.models) if plan.models else ""
                    payload = plan.payloads[index % len(plan.payloads)] if plan.payloads else None
                    if self._in_flight >= plan.concurrency:
                        self._end(FinishedCall("not_sent", 0.0, ended_at=due_at))
                    else:
                        self._in_flight += 1
                        call_id = f"{plan.call_ids}{index}" if plan.call_ids else ""
                        calls.create_task(self._send(session, target, target.body(model, payload), due_at, call_id))
        finally:
            self._ended_at = time.monotonic()

    def result(self) -> LoadResult:
        return sum_up(self.ended, self._ended_at - self.started_at, self._sent_late_s)

    async def _send(
        self, session: aiohttp.ClientSession, target: LoadTarget, body: bytes, due_at: float, call_id: str
    ) -> None:
        self._sent_late_s = max(self._sent_late_s, time.monotonic() - due_at)
        try:
            self._end(await call(session, target, body, due_at, call_id))
        finally:
            self._in_flight -= 1

    def _end(self, one: FinishedCall) -> None:
        self.ended.append(one)
        if self._progress is not None:
            self._progress(len(self.ended), self._planned)


async def closed_loop(
    url: str,
    concurrency: int,
    calls: int,
    *,
    model: str = "mock",
    stream: bool = False,
    dialect: MockDialect = "openai",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    text: str | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Runs `concurrency` workers that each send the next call when the last one has ended: measures throughput.

    `text`: what each stream must contain; None: any."""
    target = LoadTarget(url, dialect, stream, headers, timeout_s, text=text)
    body, turns = target.body(model), iter(range(calls))
    ended: list[FinishedCall] = []

    async def work(session: aiohttp.ClientSession, turns: Iterator[int]) -> None:
        for _ in turns:
            ended.append(await call(session, target, body, time.monotonic()))
            if progress is not None:
                progress(len(ended), calls)

    started_at = time.monotonic()
    async with open_session(target) as session, asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(work(session, turns))
    return sum_up(ended, time.monotonic() - started_at)
