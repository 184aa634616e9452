"""Limits that ten gateways have together: concurrent calls of a deployment, and the rate of a client key; with a
redis-server, and after its loss.

The provider counts the calls that it has at once. Each gateway is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.ops import TOKEN
from benchmarks.rig import gateway
from tests.fakes.counted_provider import CountedProvider
from tests.fakes.redis_server import RedisServer, redis_server

GATEWAYS = 10
CONCURRENCY, RATE = 20, 100.0
SECONDS = 10.0
LOST_S = 5.0
"""How long a gateway keeps its slots after the loss of the store."""
PROMISED_RATE = 1.1
"""Answered calls of a key, relative to what its rate allows."""
_LEAST_RATE = 0.9
_TAKES_S = 0.1
_CLIENTS = 60
_MODEL = "gpt-4o"

_CONFIG = f"""
fleet: {{store: "{{store}}"}}
ops: {{token: {TOKEN}}}
server:
  client_keys:
    - {{name: slots, key: k-slots}}
    - {{name: rate, key: k-rate, limits: {{rate: {RATE}}}}}
upstreams:
  one: {{dialect: openai, base_url: "{{provider}}/v1", api_key: sk}}
models:
  {_MODEL}: {{deployments: [{{upstream: one}}], capacity: {{concurrency: {CONCURRENCY}}}}}
  free: {{deployments: [{{upstream: one}}]}}
"""
ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": _MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}).encode()  # fmt: skip


@dataclass(frozen=True, slots=True)
class LimitsRun:
    """A finished run."""

    gateways: int
    seconds: float
    """Duration of each part."""
    most: int
    """Most calls that the provider had at once."""
    used: float
    """Average number of slots in use, of all that there are."""
    most_after_loss: int
    """Most calls that it had at once in the seconds after the loss of the store."""
    most_alone: int
    """Most calls that it had at once later."""
    rate: float
    """Answered calls of a key, relative to its rate, once the first second's worth of calls has been answered."""
    rate_alone: float
    """The same without the store."""
    failed: int
    """Calls with an unlimited key that got no answer."""

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        if self.most > CONCURRENCY:
            found.append(f"{self.most} calls at once, against {CONCURRENCY}")
        if self.most_after_loss > CONCURRENCY + self.gateways:
            found.append(f"{self.most_after_loss} calls at once after the loss, against {CONCURRENCY + self.gateways}")
        if self.most_alone > max(CONCURRENCY, self.gateways):
            found.append(f"{self.most_alone} calls at once without the store, against {CONCURRENCY}")
        for name, rate in (("with", self.rate), ("without", self.rate_alone)):
            if not _LEAST_RATE <= rate <= PROMISED_RATE:
                found.append(f"{rate:.2f} of a key's rate {name} the store, against {_LEAST_RATE} to {PROMISED_RATE}")
        if self.failed:
            found.append(f"{self.failed} calls got no answer")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "promised_concurrency": CONCURRENCY, "promised_rate": PROMISED_RATE}


def run(say: Callable[[str], None], gateways: int = GATEWAYS, seconds: float = SECONDS) -> LimitsRun:
    """Measures all parts: a minute and a half. Raises OSError, NotStartedError."""
    return asyncio.run(_run(say, gateways, seconds))


async def _run(say: Callable[[str], None], gateways: int, seconds: float) -> LimitsRun:
    provider = CountedProvider(ANSWER, _TAKES_S)
    server, address = await provider.start()
    say(f"fleet-limits: {gateways} gateways start")
    with ExitStack() as stack:
        store, urls = await asyncio.to_thread(stack.enter_context, _gateways(gateways, address))
        statuses = Counter[int]()
        await _load(urls, "k-slots", 1.0, statuses)  # connections, and each gateway's first exchanges
        say("fleet-limits: concurrent calls of a deployment")
        provider.begin()
        await _load(urls, "k-slots", seconds, statuses)
        most, used = provider.most, provider.answered * _TAKES_S / seconds / CONCURRENCY
        say("fleet-limits: the rate of a client key")
        rate = await _rate(provider, urls, seconds)
        say("fleet-limits: the store is lost")
        provider.begin()
        load = asyncio.create_task(_load(urls, "k-slots", LOST_S, statuses))
        await asyncio.sleep(0.5)
        store.kill()
        await load
        most_after_loss = provider.most
        await asyncio.sleep(1.0)
        provider.begin()
        await _load(urls, "k-slots", seconds, statuses)
        most_alone = provider.most
        say("fleet-limits: the rate of a client key without the store")
        rate_alone = await _rate(provider, urls, seconds)
    await server.cleanup()
    failed = sum(count for status, count in statuses.items() if status != 200)
    return LimitsRun(gateways, seconds, most, used, most_after_loss, most_alone, rate, rate_alone, failed)


async def _rate(provider: CountedProvider, urls: Sequence[str], seconds: float) -> float:
    """Returns the answered calls of the limited key, relative to its rate. At first a second's worth may come at
    once."""
    await _load(urls, "k-rate", 2.0, Counter(), model="free")
    provider.begin()
    await _load(urls, "k-rate", seconds, Counter(), model="free")
    return provider.answered / seconds / RATE


@contextmanager
def _gateways(count: int, provider: str) -> Iterator[tuple[RedisServer, list[str]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(redis_server(folder))
        config = _CONFIG.replace("{store}", store.url)
        yield store, [stack.enter_context(gateway(config, provider)).url for _ in range(count)]


async def _load(
    urls: Sequence[str], key: str, seconds: float, statuses: Counter[int], *, model: str = _MODEL
) -> None:  # fmt: skip
    """Clients call one after the other, each at a random gateway; a refused one tries again soon."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    ends_at = time.monotonic() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < ends_at:
            async with session.post(f"{random.choice(urls)}/v1/chat/completions", data=body) as response:
                await response.read()
                statuses[response.status] += 1
            if response.status != 200:
                await asyncio.sleep(0.05)

    async with aiohttp.ClientSession(headers=headers) as session:
        await asyncio.gather(*(client(session) for _ in range(_CLIENTS)))
