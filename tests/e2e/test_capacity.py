"""The official SDKs where calls queue, are rejected, are paced and are hedged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.app import App
from llm_guard.mock.content import say
from tests.chaos.forms import CHAT, MESSAGES, Form
from tests.chaos.manual import ManualProvider, after
from tests.chaos.stand import total
from tests.chaos.wire import fetch
from tests.e2e.stand import SAID, TOKENS, config_text, gateway, standing
from tests.fakes.waiting import eventually

Ask = Callable[..., Awaitable[Any]]

MODELS = """
  gpt-4o: {{deployments: [{{upstream: openai}}], {rules}}}
  claude-3-opus: {{deployments: [{{upstream: anthropic}}], {rules}}}
"""


@asynccontextmanager
async def calling_openai(url: str, **options: Any) -> AsyncIterator[Ask]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", **options) as client:
        yield lambda **more: client.chat.completions.create(model="gpt-4o", messages=SAID, **more)


@asynccontextmanager
async def calling_anthropic(url: str, **options: Any) -> AsyncIterator[Ask]:
    async with AsyncAnthropic(base_url=url, api_key="k", **options) as client:
        yield lambda **more: client.messages.create(model="claude-3-opus", max_tokens=9, messages=SAID, **more)


sdks = pytest.mark.parametrize(
    ("sdk", "form"), [(calling_openai, CHAT), (calling_anthropic, MESSAGES)], ids=["openai", "anthropic"]
)


@asynccontextmanager
async def before(provider: ManualProvider, rules: str) -> AsyncIterator[App]:
    async with provider, gateway(config_text(provider.url, models=MODELS.format(rules=rules))) as app:
        yield app


def waiting(app: App) -> int:
    now = time.monotonic()
    gates = [gate for deployment in app.gateway.deployments() for gate in deployment.gates.all()]
    return sum(sum(gate.snapshot(now).waiting.values()) for gate in gates)


@sdks
async def test_refused_sdk_retries_after_retry_after_and_is_served(sdk: Any, form: Form) -> None:
    provider = ManualProvider()
    rules = "capacity: {concurrency: 2, max_queue: 1}"
    async with before(provider, rules) as app, sdk(app.addresses[0], max_retries=0) as hold:
        held = [asyncio.ensure_future(hold()) for _ in range(2)]
        await eventually(lambda: len(provider.open) == 2)
        held.append(asyncio.ensure_future(hold()))
        await eventually(lambda: waiting(app) == 1)
        refused = await rate_limit_error_of(hold())
        assert refused.response.headers["x-llm-guard-refused-by"] == "limit"
        told_s = int(refused.response.headers["retry-after-ms"]) / 1000
        assert told_s == pytest.approx(1.0)  # two slots and two calls ahead, at an estimated second each

        # The same with an SDK that retries once: rejected, then served.
        async with sdk(app.addresses[0], max_retries=1) as ask_it:
            came_at = time.monotonic()
            again = asyncio.ensure_future(ask_it())
            async with asyncio.timeout(5):
                while await refusals(app) != 2:  # noqa: ASYNC110 - another task's doing, seen from outside
                    await asyncio.sleep(0.002)
            provider.on_request = after(0, *form.ok)
            for exchange in list(provider.open):
                exchange.answer(*form.ok)
            assert (await again).usage is not None
            assert time.monotonic() - came_at >= told_s
        await asyncio.gather(*held)
        assert len(provider.exchanges) == 4


async def rate_limit_error_of(call: Awaitable[Any]) -> Any:
    """Awaits the rate limit exception of either SDK and returns it."""
    with pytest.raises((openai_sdk.RateLimitError, anthropic_sdk.RateLimitError)) as caught:
        await call
    return caught.value


async def refusals(app: App) -> float:
    return total((await fetch(f"{app.addresses[0]}/metrics")).text, "llm_guard_refusals_total", reason="limit")


@sdks
async def test_crowd_of_sdks_is_served_within_the_limit(sdk: Any, form: Form) -> None:
    provider = ManualProvider(after(0.005, *form.ok))
    async with before(provider, "capacity: {concurrency: 4}") as app, sdk(app.addresses[0], max_retries=0) as ask_it:
        answers = await asyncio.gather(*(ask_it() for _ in range(40)))
        assert all(answer.usage is not None for answer in answers)
        assert provider.most_open == 4


@sdks
async def test_sdk_that_is_closed_frees_its_slot_in_the_queue(sdk: Any, form: Form) -> None:
    provider = ManualProvider()
    async with before(provider, "capacity: {concurrency: 1}") as app, sdk(app.addresses[0], max_retries=0) as ask_it:
        held = asyncio.ensure_future(ask_it())
        await eventually(lambda: provider.open)
        waits = asyncio.ensure_future(ask_it())
        await eventually(lambda: waiting(app) == 1)
        waits.cancel()
        await eventually(lambda: waiting(app) == 0 and app.gateway.running == 1)
        provider.open[0].answer(*form.ok)
        assert (await held).usage is not None
        assert len(provider.exchanges) == 1


@sdks
async def test_priority_is_set_by_an_extra_header(sdk: Any, form: Form) -> None:
    provider = ManualProvider()
    async with before(provider, "capacity: {concurrency: 1}") as app, sdk(app.addresses[0], max_retries=0) as ask_it:
        calls = [asyncio.ensure_future(ask_it())]
        await eventually(lambda: provider.open)
        for number, priority in enumerate(("low", "high"), 1):
            body = {"extra_headers": {"x-llm-guard-priority": priority}, "extra_body": {"mark": priority}}
            calls.append(asyncio.ensure_future(ask_it(**body)))
            await eventually(lambda: waiting(app) == number)  # noqa: B023 - awaited in the same turn
        for _ in range(3):
            await eventually(lambda: provider.open)
            provider.open[0].answer(*form.ok)
        await asyncio.gather(*calls)
        assert [exchange.body.get("mark") for exchange in provider.exchanges] == [None, "high", "low"]


HEDGED = """
  gpt-4o:
    deployments: [{{upstream: openai, model: "gpt-4o+{fault}"}}, {{upstream: openai, model: gpt-4o-mini}}]
    hedge: {{after: 50ms, max_extra: 1}}
  claude-3-opus:
    deployments:
      - {{upstream: anthropic, model: "claude-3-opus+{fault}"}}
      - {{upstream: anthropic, model: claude-3-haiku}}
    hedge: {{after: 50ms, max_extra: 1}}
"""


@pytest.mark.parametrize("fault", ["silence", "headers", "stall:0"])
async def test_sdk_streams_are_hedged_wherever_the_first_is_stuck(fault: str) -> None:
    async with standing(models=HEDGED.format(fault=fault)) as stand:
        async with calling_openai(stand.url, max_retries=0, timeout=5) as ask_it:
            chunks = [chunk async for chunk in await ask_it(stream=True)]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "".join(
                say(TOKENS)
            )
        async with calling_anthropic(stand.url, max_retries=0, timeout=5) as ask_it:
            events = [event async for event in await ask_it(stream=True)]
            assert events[-1].type == "message_stop"
        assert stand.upstream_requests == 4
