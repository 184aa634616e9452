"""Gateway and misbehaving provider together: what a client sees with and without the gateway.

Owns the scenes of the demo and how they are shown. Needs no key and no network. The gateway runs by the recommended
config, as README shows it, with both of its upstreams pointed at the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_guard.app import App, create_app
from llm_guard.config import Config, parse_config
from llm_guard.mock.content import say
from llm_guard.mock.load import LoadPlan, run_load
from llm_guard.mock.load_result import LoadResult
from llm_guard.mock.provider import MockProvider

RECOMMENDED = Path(__file__).with_name("recommended.yaml")
"""The config that README recommends; `config/recommended.yaml` is a link to it."""

_MODEL, _RENAMED, _FALLBACK = "gpt-4o", "my-gpt-4o", "gpt-4o-mini"
"""The model of the recommended config as clients and OpenAI name it, as Azure does, and the model behind both."""
_BOTH = (_MODEL, _RENAMED)
_TOKENS = 8
_SEED = 517
"""Of the faults, which strike by call and attempt, so that each run shows the same shares."""
_PATIENCE_S = 12.0
"""A client waits this long. The recommended config leaves a stream that does not begin after 10 s."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of trouble: `faults` strike each of `struck`, and clients ask for `model`."""

    trouble: str
    faults: str
    struck: tuple[str, ...] = _BOTH
    model: str = _MODEL
    calls: int = 60
    is_stream: bool = False


SCENES = (
    Scene("one provider is down, the other one serves", "status:500", (_MODEL,)),
    Scene("20 % answer 503", "status:503@20%"),
    Scene("10 % reset the connection", "reset@10%"),
    Scene("5 % of streams never begin", "silence@5%", is_stream=True),
    Scene("20 % of streams are cut before the first token", "cut:0@20%", is_stream=True),
    Scene("20 % of streams begin with an error in a 200", "error:0@20%", is_stream=True),
    Scene("20 % of streams are cut in the middle", "cut:4@20%", is_stream=True),
    Scene("the model is down everywhere, with a fallback", "status:500"),
    Scene("a model is down, without a fallback", "status:500", (_FALLBACK,), _FALLBACK),
)


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
    provider = _provider()
    app = create_app(_config(await provider.start(), host, port, store))
    try:
        await app.start()
    except OSError:
        await provider.stop()
        raise
    return provider, app


async def play(provider: MockProvider, app: App, show: Callable[[Seen], None]) -> None:
    """Every scene, through the gateway and at the same time past it, to a provider with the same faults."""
    async with _provider() as other:
        for scene in SCENES:
            _switch((provider, other), scene, scene.faults)
            before = provider.stats().requests
            direct, guarded = await asyncio.gather(_load(other.url, scene), _load(app.addresses[0], scene))
            show(Seen(scene.trouble, direct, guarded, provider.stats().requests - before))
            _switch((provider, other), scene, "")


def _provider() -> MockProvider:
    return MockProvider(seed=_SEED, tokens=_TOKENS, token_delay_s=0.002, latency_s=0.01)


def _switch(providers: tuple[MockProvider, ...], scene: Scene, faults: str) -> None:
    for provider in providers:
        for model in scene.struck:
            provider.switch(model, faults)


def _config(provider_url: str, host: str, port: int, store: str) -> Config:
    url = f"{provider_url}/v1"
    env = {"OPENAI_URL": url, "AZURE_URL": url, "OPENAI_API_KEY": "mock", "AZURE_KEY": "mock"}
    config = parse_config(RECOMMENDED.read_text(encoding="utf-8"), RECOMMENDED.name, env)
    server = config.server.model_copy(update={"host": host, "port": port, "drain": 1.0})
    return config.model_copy(update={"server": server, "ops": config.ops.model_copy(update={"store": store})})


async def _load(url: str, scene: Scene) -> LoadResult:
    text = "".join(say(_TOKENS)) if scene.is_stream else None
    plan = LoadPlan(
        url,
        (scene.model,),
        rate_per_s=100,
        calls=scene.calls,
        stream=scene.is_stream,
        timeout_s=_PATIENCE_S,
        text=text,
        call_ids=f"{SCENES.index(scene)}-",
    )
    return await run_load(plan)
