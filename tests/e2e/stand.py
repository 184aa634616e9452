"""Runs a gateway and a mock provider in the test's own event loop, with what the official SDKs need to reach them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from llm_guard.mock.faults import parse_plan
from llm_guard.mock.provider import MockProvider

TOKENS = 8
"""Content tokens in each of the mock's responses."""
MAX_ATTEMPTS = 3
SAID: Any = [{"role": "user", "content": "hi"}]

MODELS = """
  "gpt-*": {deployments: [{upstream: openai}]}
  "text-embedding-*": {deployments: [{upstream: openai}]}
  "claude-*": {deployments: [{upstream: anthropic}]}
"""
"""Model names are passed through, and with them the mock's faults."""

_CONFIG = """
server: {{port: 0, drain: 1s, client_keys: [{keys}]}}
upstreams:
  openai: {{dialect: openai, base_url: "{url}/v1", answers: {answers}}}
  anthropic: {{dialect: anthropic, base_url: "{anthropic_url}", answers: {answers}}}
{upstreams}
defaults:
  timeout: {{connect: 5s, first_token: 10s, idle: 10s, attempt: 10s, total: 20s}}
  retry: {{max_attempts: {attempts}, base_delay: 5ms, budget: {{ratio: 1, min_per_second: 1000}}}}
  breaker: {{consecutive_failures: 1000, min_calls: 10000}}
models:
{models}
"""


def config_text(
    url: str,
    *,
    anthropic_url: str | None = None,
    models: str = MODELS,
    upstreams: Iterable[str] = (),
    keys: Iterable[str] = (),
    answers: str = "strict",
) -> str:
    """Builds a config whose upstreams `openai` and `anthropic` are at `url`, unless `anthropic_url` is given.
    `upstreams` adds others at `url` (`NAME: {dialect: ..., BASE}`, where BASE stands for base_url). `keys` are the
    gateway's client keys."""
    return _CONFIG.format(
        url=url,
        anthropic_url=anthropic_url or url,
        attempts=MAX_ATTEMPTS,
        answers=answers,
        models=models,
        keys=", ".join(f'{{name: client-{key}, key: "{key}"}}' for key in keys),
        upstreams="\n".join("  " + _with_base(line, url) for line in upstreams),
    )


def _with_base(line: str, url: str) -> str:
    path = "/v1" if "dialect: openai" in line else ""
    return line.replace("BASE", f'base_url: "{url}{path}"')


@asynccontextmanager
async def gateway(config: str) -> AsyncIterator[App]:
    """Runs a gateway with this config on a free port."""
    app = create_app(parse_config(config, "test.yaml", {}))
    await app.start()
    try:
        yield app
    finally:
        if not app.gateway.is_closed:  # a second stop takes two seconds
            await app.stop()


@dataclass(frozen=True, slots=True)
class Stand:
    """A gateway in front of a mock provider."""

    provider: MockProvider
    app: App

    @property
    def url(self) -> str:
        """The gateway's URL, without `/v1`."""
        return self.app.addresses[0]

    @property
    def upstream_requests(self) -> int:
        """Number of requests the provider has received."""
        return self.provider.stats().requests


@asynccontextmanager
async def standing(
    *,
    seed: int = 0,
    tokens: int = TOKENS,
    token_delay_s: float = 0.0,
    models: str = MODELS,
    upstreams: Iterable[str] = (),
    keys: Iterable[str] = (),
) -> AsyncIterator[Stand]:
    """Runs both; the arguments are those of the mock and of `config_text`."""
    async with MockProvider(seed=seed, tokens=tokens, token_delay_s=token_delay_s) as provider:
        config = config_text(provider.url, models=models, upstreams=upstreams, keys=keys)
        async with gateway(config) as app:
            yield Stand(provider, app)


def first_only(model: str) -> int:
    """Finds a seed with which the faults of `model` (`NAME+FAULT@50%`) affect its first request but not the next
    two."""
    plan = parse_plan(model)
    wanted = [True, False, False]
    return next(seed for seed in range(10_000) if [bool(plan.draw(seed, n).faults) for n in (1, 2, 3)] == wanted)
