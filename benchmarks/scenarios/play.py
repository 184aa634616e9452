"""Plays one scenario with every client at once: sends the load, switches the provider's faults, counts its requests.

The results are judged in `measure`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.scenarios.catalogue import Act, Scenario
from benchmarks.scenarios.clients import Client
from llm_guard.mock.load import closed_loop, run_calls
from llm_guard.mock.load_result import FinishedCall

_WARM_CALLS = 20
_SETTLES_IN_S = 90.0


@dataclass(slots=True)
class Observed:
    """Calls of one client, and the request counts of its provider."""

    client: Client
    started_at: float
    ended: list[FinishedCall] = field(default_factory=list)
    requests: list[tuple[float, int]] = field(default_factory=list)
    """Monotonic time and requests since the start: at the start, every second, at every act, at the end."""
    arrivals: list[float] = field(default_factory=list)
    """Monotonic times at which its provider received requests: the latest 1,000 before each of the counts."""
    acts_at: dict[float, float] = field(default_factory=dict)
    """When its provider performed each act after the start, by the act's own time. The load and the providers share a
    processor: where 3,000 clients call at once, acts are up to 0.3 s late."""


async def play(scenario: Scenario, clients: list[Client], seconds: float, tick: Callable[[], None]) -> list[Observed]:
    """Returns when the last call has ended; `tick` is called every second."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as http:
        providers = [_Provider(http, client.provider_url, scenario) for client in clients]
        await asyncio.gather(*(_settle(client, scenario.model) for client in clients))
        try:
            await _perform(providers, [act for act in scenario.acts if act.at_s <= 0])
            before = [(await provider.stats()).requests for provider in providers]
            seen = [Observed(client, time.monotonic()) for client in clients]
            watch = asyncio.ensure_future(_watch(providers, seen, before, scenario, tick))
            await asyncio.gather(*(_load(one, scenario, seconds) for one in seen))
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await _count(providers, seen, before)
        finally:
            await _perform(providers, [Act(0, "", act.model) for act in scenario.acts])
    return seen


async def _load(one: Observed, scenario: Scenario, seconds: float) -> None:
    loads = [run_calls(one.client.plan(scenario, scenario.model, seconds))]
    if scenario.neighbour is not None:
        loads.append(run_calls(one.client.plan(scenario, scenario.neighbour, seconds)))
    one.ended, *_ = await asyncio.gather(*loads)


async def _watch(
    providers: list[_Provider], seen: list[Observed], before: list[int], scenario: Scenario, tick: Callable[[], None]
) -> None:
    """Performs acts and takes counts at their times; there is a count before and after each act."""
    acts = [act for act in scenario.acts if act.at_s > 0]
    second = 0
    while True:
        next_s = min([act.at_s for act in acts] + [second])
        await asyncio.sleep(max(0.0, seen[0].started_at + next_s - time.monotonic()))
        performed = await _perform(providers, [act for act in acts if act.at_s == next_s])
        for one, at in zip(seen, performed, strict=True):
            if at is not None:
                one.acts_at[next_s] = at
        acts = [act for act in acts if act.at_s > next_s]
        await _count(providers, seen, before)
        if next_s == second:
            second += 1
            tick()


async def _perform(providers: list[_Provider], acts: list[Act]) -> list[float | None]:
    """Returns when each provider had performed the last of the acts; None without any."""
    switched = await asyncio.gather(
        *(asyncio.gather(*(provider.switch(act) for act in acts)) for provider in providers)
    )
    return [max(times, default=None) for times in switched]


async def _count(providers: list[_Provider], seen: list[Observed], before: list[int]) -> None:
    found = await asyncio.gather(*(provider.stats() for provider in providers))
    for one, stats, first in zip(seen, found, before, strict=True):
        one.requests.append((time.monotonic(), stats.requests - first))
        known_until = one.arrivals[-1] if one.arrivals else one.started_at
        one.arrivals += [at for at in stats.arrivals if at > known_until]


async def _settle(client: Client, model: str) -> None:
    """Opens connections, and waits until another gateway has recovered from the previous scenario."""
    give_up_at = time.monotonic() + _SETTLES_IN_S
    while True:
        result = await closed_loop(client.url, 1, _WARM_CALLS, model=model, timeout_s=5.0)
        if result.ok == _WARM_CALLS:
            return
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{client.name} does not serve {model} though nothing is wrong: {dict(result.outcomes)}")
        await asyncio.sleep(1.0)


@dataclass(frozen=True, slots=True)
class _Stats:
    requests: int
    """Since the provider's start, without those for the neighbour."""
    arrivals: list[float]
    """Monotonic times of its latest requests, those for the neighbour included."""


class _Provider:
    """A running mock."""

    def __init__(self, http: aiohttp.ClientSession, url: str, scenario: Scenario) -> None:
        self._http = http
        self._url = url
        self._left_out = scenario.neighbour

    async def switch(self, act: Act) -> float:
        """Sets or clears a model's faults; returns the monotonic time at which the provider did it."""
        order = {"model": act.model, "faults": act.faults}
        async with self._http.post(f"{self._url}/mock/faults", json=order) as response:
            response.raise_for_status()
            return float((await response.json())["at"])

    async def stats(self) -> _Stats:
        async with self._http.get(f"{self._url}/mock/stats") as response:
            stats: dict[str, Any] = await response.json()
        counts = (int(count) for model, count in stats["by_model"].items() if model != self._left_out)
        return _Stats(sum(counts), stats["arrivals"])
