"""Gateway and misbehaving provider together: what a client sees with and without the gateway.

Owns the scenes of the demo and how they are shown. Needs no key and no network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.app import App, create_app
from llm_guard.config import Config, parse_config
from llm_guard.mock.content import say
from llm_guard.mock.load import LoadPlan, run_load
from llm_guard.mock.load_result import LoadResult
from llm_guard.mock.provider import MockProvider

_CONFIG = """
server: {{host: {host}, port: {port}, drain: 1s}}
ops: {{store: {store}}}
upstreams:
  mock: {{dialect: openai, base_url: "{provider}/v1"}}
  mock-anthropic: {{dialect: anthropic, base_url: "{provider}"}}
defaults:
  timeout: {{connect: 1s, first_token: 500ms, idle: 1s, attempt: 500ms, total: 10s}}
  retry: {{max_attempts: 4, base_delay: 50ms}}
models:
  gpt-4o: {{deployments: [{{upstream: mock}}]}}
  "claude-*": {{deployments: [{{upstream: mock-anthropic}}]}}
{models}
"""
_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of trouble."""

    name: str
    provider_model: str
    """The mock's model name, faults included."""
    calls: int = 60
    is_stream: bool = False
    fallback: str | None = None
    rules: str = ""
    """Of the model, beyond the defaults."""

    def as_config(self) -> str:
        """The scene's entry in `models`."""
        extra = f", fallbacks: [{self.fallback}]" if self.fallback else ""
        extra += f", {self.rules}" if self.rules else ""
        return f'  {self.name}: {{deployments: [{{upstream: mock, model: "{self.provider_model}"}}]{extra}}}'


SCENES = {
    "20 % answer 503": Scene("overloaded", "gpt-4o+status:503@20%"),
    "10 % reset the connection": Scene("resetting", "gpt-4o+reset@10%"),
    "5 % never answer": Scene("hanging", "gpt-4o+silence@5%"),
    "20 % of streams are cut before the first token": Scene("cutting", "gpt-4o+cut:0@20%", is_stream=True),
    "20 % of streams begin with an error in a 200": Scene("erring", "gpt-4o+error:0@20%", is_stream=True),
    "20 % of streams are cut in the middle, recovered": Scene(
        "dying", "gpt-4o+cut:4@20%", is_stream=True, fallback="gpt-4o", rules="stream: {recover: continue}"
    ),
    "one model is down, with a fallback": Scene("down", "gpt-4o+status:500", fallback="gpt-4o"),
    "one model is down, without one": Scene("gone", "gpt-4o-mini+status:500"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one scene."""

    trouble: str
    direct: LoadResult
    guarded: LoadResult
    upstream_requests: int


async def start(host: str, port: int, store: str) -> tuple[MockProvider, App]:
    """Provider and gateway, running; the caller stops them. `store`: the folder for what the gateway keeps. Raises
    OSError when the address cannot be had."""
    provider = MockProvider(seed=1, tokens=_TOKENS, token_delay_s=0.002, latency_s=0.01)
    app = create_app(_config(await provider.start(), host, port, store))
    try:
        await app.start()
    except OSError:
        await provider.stop()
        raise
    return provider, app


async def play(provider: MockProvider, app: App, show: Callable[[Seen], None]) -> None:
    """Every scene, first past the gateway, then through it."""
    for trouble, scene in SCENES.items():
        direct = await _load(provider.url, scene.provider_model, scene)
        before = provider.stats().requests
        guarded = await _load(app.addresses[0], scene.name, scene)
        show(Seen(trouble, direct, guarded, provider.stats().requests - before))


def _config(provider_url: str, host: str, port: int, store: str) -> Config:
    models = "\n".join(scene.as_config() for scene in SCENES.values())
    return parse_config(
        _CONFIG.format(provider=provider_url, host=host, port=port, store=json.dumps(store), models=models), "demo", {}
    )


async def _load(url: str, model: str, scene: Scene) -> LoadResult:
    text = "".join(say(_TOKENS)) if scene.is_stream else None
    plan = LoadPlan(url, (model,), rate_per_s=100, calls=scene.calls, stream=scene.is_stream, timeout_s=2, text=text)
    return await run_load(plan)
