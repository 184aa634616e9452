"""Runs a gateway with routes of two dialects in front of a mock provider, or of a provider with a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from llm_guard.app import App
from llm_guard.mock.provider import MockProvider
from tests.e2e.stand import Stand, gateway
from tests.fakes.provider import END, ScriptedProvider, Step, chunk, stream_head

KEYS = {"openai": "sk-of-openai", "anthropic": "sk-of-anthropic", "local": "sk-of-local"}
"""The gateway's own keys."""

_CONFIG = """
server: {{port: 0, drain: 1s}}
upstreams:
  openai: {{dialect: openai, base_url: "{url}/v1"{openai}}}
  anthropic: {{dialect: anthropic, base_url: "{url}"{anthropic}}}
  local: {{dialect: openai, base_url: "{url}/v1", responses: chat{local}}}
  bare: {{dialect: openai, base_url: "{url}/v1", responses: chat}}
defaults:
  timeout: {{connect: 5s, first_token: 10s, idle: 10s, attempt: 10s, total: 20s}}
  retry: {{max_attempts: 2, base_delay: 2ms, max_delay: 10ms, budget: {{ratio: 1, min_per_second: 1000}}}}
{defaults}
models:
{models}
"""


def config_text(url: str, models: str, *, defaults: str = "", has_keys: bool = True) -> str:
    """Without `has_keys`, callers bring their own keys."""
    keys = {name: f", api_key: {key}" if has_keys else "" for name, key in KEYS.items()}
    return _CONFIG.format(url=url, models=models, defaults=defaults, **keys)


def route(primary: str, stand_in: str, *, rules: str = "") -> str:
    """Returns the models `front`, and `back` as its fallback; each is `UPSTREAM/MODEL`, with the mock's faults."""
    lines = []
    for name, target, rest in (("front", primary, f"fallbacks: [back], {rules}"), ("back", stand_in, rules)):
        upstream, _, model = target.partition("/")
        lines.append(f'  {name}: {{deployments: [{{upstream: {upstream}, model: "{model}"}}], {rest}}}')
    return "\n".join(lines)


@asynccontextmanager
async def mixed(
    models: str,
    *,
    seed: int = 0,
    tokens: int = 8,
    token_delay_s: float = 0.0,
    defaults: str = "",
    has_keys: bool = True,
) -> AsyncIterator[Stand]:
    """Runs both with these models."""
    async with (
        MockProvider(seed=seed, tokens=tokens, token_delay_s=token_delay_s) as provider,
        gateway(config_text(provider.url, models, defaults=defaults, has_keys=has_keys)) as app,
    ):
        yield Stand(provider, app)


@asynccontextmanager
async def scripted(
    models: str, *scripts: Sequence[Step], defaults: str = ""
) -> AsyncIterator[tuple[App, ScriptedProvider]]:
    """Runs a gateway in front of a provider that plays these scripts."""
    async with (
        ScriptedProvider(*scripts) as provider,
        gateway(config_text(provider.url, models, defaults=defaults)) as app,
    ):
        yield app, provider


def stream(raw: bytes, *steps: Step) -> list[Step]:
    """Returns a script: a stream of these bytes, and then `steps`, or its end."""
    return [stream_head(), chunk(raw), *(steps or (END,))]


def received(provider: ScriptedProvider, index: int = -1) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns headers and body of a request."""
    head, _, body = provider.requests[index].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines[1:]}
    return {**headers, ":target": lines[0].split(" ")[1]}, json.loads(body)
