"""The pace that gateways have together before a provider with a rate limit: one, three and ten, each a process of its
own, and one redis-server, which is frozen at last.

Calls come at random, somewhat and far more of them than the provider takes. Simulated beside it, with other limits:
`benchmarks.storm.shared_paces`.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.fleet_limits import ANSWER
from benchmarks.ops import TOKEN
from benchmarks.rig import gateway
from tests.fakes.limited_provider import LimitedProvider
from tests.fakes.redis_server import RedisServer, redis_server

GATEWAYS = (1, 3, 10)
LIMIT = 40.0
OFFERED = (44.0, 60.0)
WARM_S, SECONDS = 40.0, 30.0
LEAST_GOODPUT, MOST_PER_ANSWER = 0.97, 1.06
"""Promised: answers relative to the limit, and requests to the provider for each answer."""
LEAST_WITHOUT_STORE, MOST_REFUSED = 0.75, 2.0
"""Promised while the store is frozen: answers relative to the limit, and 429s a second."""
_TAKES_S = 0.3
_MODEL = "gpt-4o"
_SEED = 7

_CONFIG = f"""
fleet: {{store: "{{store}}"}}
ops: {{token: {TOKEN}}}
upstreams: {{one: {{dialect: openai, base_url: "{{provider}}/v1", api_key: sk}}}}
models: {{{_MODEL}: {{deployments: [{{upstream: one}}]}}}}
"""


@dataclass(frozen=True, slots=True)
class PaceRow:
    """One run."""

    gateways: int
    offered: float
    """Calls a second in all."""
    goodput: float
    """Answers relative to the limit."""
    per_answer: float
    """Requests that the provider got for each answer."""
    without_store: float
    """Answers relative to the limit while the store is frozen."""
    refused: float
    """429s of the provider a second, meanwhile."""
    failed: float
    """Share of calls that got no answer: more calls come than the provider takes."""


@dataclass(frozen=True, slots=True)
class PaceRun:
    """A finished run."""

    rows: tuple[PaceRow, ...]

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        for row in self.rows:
            which = f"{row.gateways} gateways, {row.offered:g} calls/s"
            if row.goodput < LEAST_GOODPUT:
                found.append(f"{which}: {row.goodput:.2f} of the limit, against {LEAST_GOODPUT}")
            if row.per_answer > MOST_PER_ANSWER:
                found.append(f"{which}: {row.per_answer:.2f} requests for each answer, against {MOST_PER_ANSWER}")
            if row.without_store < LEAST_WITHOUT_STORE:
                found.append(
                    f"{which}, store frozen: {row.without_store:.2f} of the limit, against {LEAST_WITHOUT_STORE}"
                )
            if row.refused > MOST_REFUSED:
                found.append(f"{which}, store frozen: {row.refused:.1f} 429s a second, against {MOST_REFUSED:g}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **asdict(self), "least_goodput": LEAST_GOODPUT, "most_per_answer": MOST_PER_ANSWER,
            "least_without_store": LEAST_WITHOUT_STORE, "most_refused": MOST_REFUSED,
        }  # fmt: skip


def run(
    say: Callable[[str], None], gateways: Sequence[int] = GATEWAYS, warm_s: float = WARM_S, seconds: float = SECONDS
) -> PaceRun:  # fmt: skip
    """Measures each number of gateways and each rate: eleven minutes. Raises OSError, NotStartedError."""
    rows = []
    for count in gateways:
        for offered in OFFERED:
            say(f"fleet-pace: {count} gateways, {offered:g} calls/s before a limit of {LIMIT:g}/s")
            rows.append(asyncio.run(_row(count, offered, warm_s, seconds)))
    return PaceRun(tuple(rows))


async def _row(count: int, offered: float, warm_s: float, seconds: float) -> PaceRow:
    provider = LimitedProvider(ANSWER, LIMIT, _TAKES_S)
    server, address = await provider.start()
    with ExitStack() as stack:
        store, urls = await asyncio.to_thread(stack.enter_context, _gateways(count, address))
        load = asyncio.create_task(_load(urls, offered, warm_s + 2 * seconds))
        await asyncio.sleep(warm_s)
        well = await _measured(provider, seconds)
        store.freeze()
        frozen = await _measured(provider, seconds)
        store.thaw()
        statuses = await load
    await server.cleanup()
    failed = sum(number for status, number in statuses.items() if status != 200) / max(1, statuses.total())
    return PaceRow(
        count, offered, well.answered / seconds / LIMIT, well.requests / max(1, well.answered),
        frozen.answered / seconds / LIMIT, frozen.refused / seconds, failed,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Counts:
    requests: int
    answered: int
    refused: int


async def _measured(provider: LimitedProvider, seconds: float) -> _Counts:
    provider.begin()
    await asyncio.sleep(seconds)
    return _Counts(provider.requests, provider.answered, provider.refused)


@contextmanager
def _gateways(count: int, provider: str) -> Iterator[tuple[RedisServer, list[str]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(redis_server(folder))
        config = _CONFIG.replace("{store}", store.url)
        yield store, [stack.enter_context(gateway(config, provider)).url for _ in range(count)]


async def _load(urls: Sequence[str], per_s: float, seconds: float) -> Counter[int]:
    """Sends calls at random (Poisson), each to a random gateway; returns the statuses of all, the last ones too."""
    body = json.dumps({"model": _MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
    draw, statuses = random.Random(_SEED), Counter[int]()

    async def call(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{draw.choice(urls)}/v1/chat/completions", data=body) as response:
            await response.read()
            statuses[response.status] += 1

    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    connections = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connections) as session, asyncio.TaskGroup() as calls:
        due_at = asyncio.get_running_loop().time()
        ends_at = due_at + seconds
        while (due_at := due_at + draw.expovariate(per_s)) < ends_at:
            await asyncio.sleep(due_at - asyncio.get_running_loop().time())
            calls.create_task(call(session))
    return statuses
