"""Ten gateways of a fleet, each a process of its own, and one redis-server: an outage that they notice together.

How many requests a provider gets meanwhile, how soon all gateways refuse calls, how soon an operator's change holds
everywhere, and how many notices a webhook gets. Simulated beside it: `benchmarks.storm.replicas`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.ops import TOKEN
from benchmarks.rig import gateway
from llm_guard.mock.provider import MockProvider
from tests.fakes.redis_server import redis_server

GATEWAYS = 10
PROMISED_REQUESTS, PROMISED_OPEN_S, PROMISED_FORCE_S = 60, 7.0, 0.5
OUTAGE_S = 120.0
_CALLS_PER_S = 1.0
_RESOLVING_PER_S = 50.0
"""Calls a second after the outage: an alert looks at a model's last hundred calls."""
_SEED = 7
_POLL_S = 0.2
_RECOVERS_WITHIN_S = 180.0
_MODEL = "gpt-4o"
_DEPLOYMENT = f"one/{_MODEL}"
_REFUSING = ("open", "half_open")
_HEADERS = {"authorization": f"Bearer {TOKEN}"}

CONFIG = f"""
ops: {{token: {TOKEN}, webhooks: [{{name: team, url: "{{receiver}}"}}]}}
fleet: {{store: "{{store}}"}}
upstreams: {{one: {{dialect: openai, base_url: "{{provider}}/v1"}}}}
defaults: {{retry: {{max_attempts: 1}}}}
models: {{{_MODEL}: {{deployments: [{{upstream: one}}]}}}}
"""
"""One request a call, so that the provider's requests can be counted; all else is as by default."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """A finished run."""

    gateways: int
    outage_s: float
    requests: int
    """Requests that the provider got during the outage."""
    open_after_s: float
    """From the beginning of the outage until all gateways refused calls."""
    closed_after_s: float
    """From its end until no gateway refused calls."""
    force_s: float
    """From an operator's request to one gateway until a breaker was forced open at all."""
    notices: dict[str, int]
    """Notices that the webhook got, by state and severity."""

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        if self.requests > PROMISED_REQUESTS:
            found.append(f"requests in the outage: {self.requests}, against {PROMISED_REQUESTS}")
        if self.open_after_s > PROMISED_OPEN_S:
            found.append(f"all refuse calls after {self.open_after_s:.1f} s, against {PROMISED_OPEN_S:.0f}")
        if self.force_s > PROMISED_FORCE_S:
            found.append(f"forced open everywhere after {self.force_s:.2f} s, against {PROMISED_FORCE_S}")
        if any(count > 1 for count in self.notices.values()) or {*self._states()} != {"firing", "resolved"}:
            found.append(f"notices: {self.notices}, against one of each state and severity")
        return found

    def _states(self) -> Iterator[str]:
        return (name.partition(" ")[0] for name in self.notices)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        promised = {"requests": PROMISED_REQUESTS, "open_after_s": PROMISED_OPEN_S, "force_s": PROMISED_FORCE_S}
        return {**asdict(self), "promised": promised}


def run(say: Callable[[str], None], gateways: int = GATEWAYS, outage_s: float = OUTAGE_S) -> FleetRun:
    """Measures one outage: five minutes. Raises OSError, NotStartedError."""
    return asyncio.run(_run(say, gateways, outage_s))


class Receiver:
    """A webhook's receiver, which counts notices by state and severity."""

    def __init__(self) -> None:
        self.notices = Counter[str]()

    async def receive(self, request: web.Request) -> web.Response:
        for alert in (await request.json())["alerts"]:
            self.notices[f"{alert['state']} {alert['severity']}"] += 1
        return web.Response()

    async def start(self) -> tuple[web.AppRunner, str]:
        """Returns the server, which the caller cleans up, and its address."""
        app = web.Application()
        app.router.add_post("/", self.receive)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/"


class Load:
    """Calls that come at random (Poisson) at one rate, to one gateway after the other."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._session = session
        self._urls = cycle(urls)
        self._calls = set[asyncio.Task[None]]()
        self._random = Random(_SEED)
        self.per_s = _CALLS_PER_S
        self.statuses = Counter[int]()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            call = asyncio.create_task(self._call(next(self._urls)))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            await asyncio.sleep(self._random.expovariate(self.per_s))

    async def _call(self, url: str) -> None:
        body = {"model": _MODEL, "messages": [{"role": "user", "content": "hello"}]}
        async with self._session.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()
            self.statuses[response.status] += 1


async def _run(say: Callable[[str], None], gateways: int, outage_s: float) -> FleetRun:
    receiver = Receiver()
    server, address = await receiver.start()
    async with MockProvider() as provider:
        say(f"fleet: {gateways} gateways start")
        with ExitStack() as stack:
            urls = await asyncio.to_thread(stack.enter_context, _gateways(gateways, provider.url, address))
            async with aiohttp.ClientSession(headers=_HEADERS) as session:
                found = await _outage(say, session, urls, provider, outage_s)
            notices = dict(receiver.notices)
    await server.cleanup()
    return FleetRun(gateways, outage_s, *found, notices=notices)


@contextmanager
def _gateways(count: int, provider: str, receiver: str) -> Iterator[list[str]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(redis_server(folder))
        config = CONFIG.replace("{receiver}", receiver).replace("{store}", store.url)
        yield [stack.enter_context(gateway(config, provider)).url for _ in range(count)]


async def _outage(
    say: Callable[[str], None],
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    provider: MockProvider,
    outage_s: float,
) -> tuple[int, float, float, float]:
    """Returns the requests in the outage, and the seconds until all were open, were closed again, and were forced."""
    load = Load(session, urls)
    calls = asyncio.create_task(load.run())
    try:
        say("fleet: all is well")
        await asyncio.sleep(2 * len(urls) / _CALLS_PER_S)
        assert set(load.statuses) == {200}, load.statuses  # otherwise nothing below means anything
        say(f"fleet: an outage of {outage_s:.0f} s")
        before, began_at = provider.stats().requests, time.monotonic()
        provider.switch(_MODEL, "status:503")
        open_s = await _until(session, urls, lambda states: set(states) <= set(_REFUSING), outage_s)
        await asyncio.sleep(max(0.0, began_at + outage_s - time.monotonic()))
        requests = provider.stats().requests - before
        say("fleet: the provider is well again")
        provider.switch(_MODEL, "")
        closed_s = await _until(session, urls, lambda states: set(states) == {"closed"}, _RECOVERS_WITHIN_S)
        say("fleet: the alerts resolve")
        load.per_s = _RESOLVING_PER_S
        await _resolved(session, urls)
        say("fleet: an operator forces a breaker open")
        body = {"deployment": _DEPLOYMENT, "reason": "measured", "for": "1m"}
        async with session.post(f"{urls[0]}/admin/breakers/force-open", json=body) as response:
            response.raise_for_status()
        force_s = await _until(session, urls, lambda states: set(states) == {"forced_open"}, 10.0, poll_s=0.01)
        return requests, open_s, closed_s, force_s
    finally:
        calls.cancel()
        await asyncio.wait((calls,))


async def _until(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    is_so: Callable[[Sequence[str]], bool],
    within_s: float,
    poll_s: float = _POLL_S,
) -> float:
    """Returns the seconds until the states of the breaker at all gateways are so; `within_s` if they never are."""
    began_at = time.monotonic()
    while (passed_s := time.monotonic() - began_at) < within_s:
        if is_so(await asyncio.gather(*(_state(session, url) for url in urls))):
            return passed_s
        await asyncio.sleep(poll_s)
    return within_s


async def _state(session: aiohttp.ClientSession, url: str) -> str:
    breakers = json.loads(await _read(session, f"{url}/admin/breakers"))
    return next(str(one["state"]) for one in breakers if one["deployment"] == _DEPLOYMENT)


async def _resolved(session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
    """Waits until no alert fires, and for the notices of that."""
    ends_at = time.monotonic() + _RECOVERS_WITHIN_S
    while time.monotonic() < ends_at:
        found = await asyncio.gather(*(_read(session, f"{url}/admin/alerts") for url in urls))
        if not any(json.loads(alerts)["firing"] for alerts in found):
            break
        await asyncio.sleep(1.0)
    await asyncio.sleep(5.0)


async def _read(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as response:
        response.raise_for_status()
        return await response.read()
