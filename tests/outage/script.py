"""The outage, step by step. docs/metrics.md says which panels and rules show something after each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import aiohttp
import psutil

from tests.integration.worker_processes import kill
from tests.outage.traffic import LIMITED, Outage
from tests.tokens import SHARED

Step = Callable[[Outage], Awaitable[None]]

ASYNC = ("x-llm-guard-async: true",)


async def nothing_is_wrong(outage: Outage) -> None:
    for model in ("main", "spare", "alone", "cached", "replaced", "replaced-too", "local", "paid"):
        outage.keep_calling(model)
    for model in ("streamed", "buffered"):
        outage.keep_calling(model, stream=True)
    outage.keep_calling("hedged", each_s=0.2)
    outage.keep_calling("translated", seed=1)
    outage.keep_calling("deferred", each_s=0.3, headers=ASYNC)


async def slow_responses(outage: Outage) -> None:
    for model in ("main", "hedged", "spare"):
        outage.one.switch(model, "latency:300ms")


async def brown_out(outage: Outage) -> None:
    outage.one.switch("retried", "status:500@90%")
    for _ in range(4):
        outage.keep_calling("retried", each_s=0.05)
    for model in ("main", "alone", "cached", "hedged", "replaced", "replaced-too"):
        outage.one.switch(model, "status:503@70%")
    for model in ("streamed", "buffered"):
        outage.one.switch(model, "cut:3@70%")
    outage.two.switch("streamed", "malformed:2@30%")


async def outage_of_a_provider(outage: Outage) -> None:
    outage.stop_calling("retried")
    for model in ("main", "alone", "cached", "replaced", "replaced-too", "kept"):
        outage.one.switch(model, "status:500")
    outage.one.switch("/health", "status:503")
    for _ in range(3):
        outage.keep_calling("kept")


async def hanging_provider(outage: Outage) -> None:
    outage.one.switch("hedged", "silence")
    outage.two.switch("spare", "silence")
    outage.keep_calling("hedged", text="long" * 500_000)


async def injected_fault(outage: Outage) -> None:
    body = {"model": "spare", "fault": {"kind": "status"}, "share": 0.5, "for": "5m", "reason": "to see it"}
    headers, url = {"authorization": f"Bearer {SHARED}"}, f"{outage.served.url}/admin/chaos"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as response:
        assert response.status == 200, await response.text()


async def refused_key(outage: Outage) -> None:
    outage.one.switch("paid", "quota")


async def too_many_calls(outage: Outage) -> None:
    outage.two.switch("narrow", "latency:200ms")
    for _ in range(4):
        outage.keep_calling("narrow", each_s=0.01)
    outage.keep_calling("spare", key=LIMITED)


async def engine_that_cannot_start(outage: Outage) -> None:
    async def kill() -> None:
        while True:
            for engine in psutil.Process(outage.served.process.pid).children():
                engine.kill()
            await asyncio.sleep(1)

    outage.calling.append(asyncio.create_task(kill()))


async def ended_worker(outage: Outage) -> None:
    await kill(outage.workers, 2)


async def lost_store(outage: Outage) -> None:
    outage.redis.kill()


async def blocked_gateway(outage: Outage) -> None:
    outage.stop_calling()  # a scrape that takes longer than its limit would start the alert's wait again

    async def block() -> None:
        try:
            while True:
                outage.served.signal(signal.SIGSTOP)
                await asyncio.sleep(0.35)
                outage.served.signal(signal.SIGCONT)
                await asyncio.sleep(0.65)
        finally:
            outage.served.signal(signal.SIGCONT)

    outage.calling.append(asyncio.create_task(block()))


async def broken_config(outage: Outage) -> None:
    outage.stop_calling()  # which no longer blocks it
    outage.config.write_text("upstreams: []")
    outage.served.signal(signal.SIGHUP)


async def gateway_that_is_gone(outage: Outage) -> None:
    outage.served.signal(signal.SIGKILL)


STEPS: dict[str, Step] = {
    "nothing is wrong": nothing_is_wrong,
    "responses are slow": slow_responses,
    "brown-out": brown_out,
    "a provider is down": outage_of_a_provider,
    "a provider hangs": hanging_provider,
    "an operator injects a fault": injected_fault,
    "a key has no balance": refused_key,
    "too many calls": too_many_calls,
    "an engine cannot start": engine_that_cannot_start,
    "a worker ends": ended_worker,
    "the fleet's store is down": lost_store,
    "the event loop is blocked": blocked_gateway,
    "the config file is broken": broken_config,
    "the gateway is gone": gateway_that_is_gone,
}
"""In this order, each on top of those before it."""
