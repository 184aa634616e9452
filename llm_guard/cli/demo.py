"""The demo: what a client sees of a misbehaving provider, with and without the gateway.

Needs no key and no network. The gateway uses the recommended config of `docs/configuration.md`, with both upstreams
pointed at the provider, and a model that one of Anthropic's stands in for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from llm_guard.app import App, create_app
from llm_guard.config import Config, parse_config
from llm_guard.mock.content import say
from llm_guard.mock.load import LoadPlan, run_load
from llm_guard.mock.load_result import LoadResult
from llm_guard.mock.provider import MockProvider

RECOMMENDED = Path(__file__).parents[1] / "recommended.yaml"
"""The config recommended in `docs/configuration.md`; `config/recommended.yaml` is a link to it."""

_MODEL, _RENAMED, _FALLBACK = "gpt-4o", "my-gpt-4o", "gpt-4o-mini"
"""The recommended config's model as named by clients and OpenAI, as named by Azure, and its fallback model."""
_BOTH = (_MODEL, _RENAMED)
_OPENAI_ONLY = "gpt-5.5"
"""A model that one provider serves alone, with a model of another dialect as its fallback."""
_OTHER_UPSTREAM = '  anthropic: {dialect: anthropic, base_url: "${ANTHROPIC_URL}", api_key: "${ANTHROPIC_API_KEY}"}\n'
_OTHER_MODELS = """\
  gpt-5.5: {deployments: [{upstream: openai}], fallbacks: [claude-sonnet-5]}
  claude-sonnet-5: {deployments: [{upstream: anthropic}]}
"""
_TOKENS = 8
_SEED = 863
"""Seed of the faults, which depend on call and attempt, so that each run shows the same figures."""
_LOOKS = 3
"""Looks at the gateway, a second apart, that must all find it healthy at the end."""
_RATE = 66
"""Calls of each model between two looks."""
_PATIENCE_S = 12.0
"""The clients' timeout. The recommended config gives up a stream that does not begin within 10 s."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of trouble: `faults` affect each model in `struck`, while clients call `model`."""

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
    Scene("OpenAI is down, Claude serves", "status:500", (_OPENAI_ONLY,), _OPENAI_ONLY, is_stream=True),
    Scene("a model is down, without a fallback", "status:500", (_FALLBACK,), _FALLBACK),
)


@dataclass(frozen=True, slots=True)
class SceneResult:
    """The result of one scene."""

    trouble: str
    direct: LoadResult
    guarded: LoadResult
    upstream_requests: int


async def start(host: str, port: int, store: str) -> tuple[MockProvider, App]:
    """Starts provider and gateway; the caller stops them. `store` is the gateway's state directory. Raises OSError if
    the address is not available."""
    provider = _provider()
    app = create_app(_config(await provider.start(), host, port, store))
    try:
        await app.start()
    except OSError:
        await provider.stop()
        raise
    return provider, app


async def play(provider: MockProvider, app: App, show: Callable[[SceneResult], None]) -> list[SceneResult]:
    """Plays every scene through the gateway, and at the same time directly against a provider with the same faults."""
    results = []
    async with _provider() as other:
        for scene in SCENES:
            _switch((provider, other), scene, scene.faults)
            before = provider.stats().requests
            direct, guarded = await asyncio.gather(_load(other.url, scene), _load(app.addresses[0], scene))
            results.append(SceneResult(scene.trouble, direct, guarded, provider.stats().requests - before))
            show(results[-1])
            _switch((provider, other), scene, "")
    return results


async def recover(provider: MockProvider, app: App, within_s: float = 120.0) -> bool:
    """Makes calls until the gateway stays healthy, which an operator's first look at it should show. Returns False if
    it does not within `within_s`. The provider is well afterwards in either case."""
    ends_at = asyncio.get_running_loop().time() + within_s
    healthy = 0
    while healthy < _LOOKS:
        if asyncio.get_running_loop().time() > ends_at:
            provider.switch(_MODEL, "")
            return False
        is_healthy = (await app.ops.overview.snapshot()).health == "healthy"
        healthy = healthy + 1 if is_healthy else 0
        # The second deployment serves only what the first one fails at, and without calls its breaker stays open.
        provider.switch(_MODEL, "" if is_healthy else "status:503@30%")
        models = (_MODEL, _FALLBACK, _OPENAI_ONLY)
        plans = [
            LoadPlan(app.addresses[0], (model,), rate_per_s=_RATE, calls=_RATE, timeout_s=_PATIENCE_S)
            for model in models
        ]
        await asyncio.gather(*(run_load(plan) for plan in plans))
    return True


def notice(results: Iterable[SceneResult]) -> list[str]:
    """Returns the lines that explain the dashboard after the demo: what was played, and what clients noticed of it."""
    head = (
        "This is the demo. The provider has played these faults, one after the other, and is well again. Failed calls "
        "and alerts below are from then. Successful calls without and with llm_guard:"
    )
    return [
        head,
        *(f"{each.trouble}: {each.direct.success_share:.0%} and {each.guarded.success_share:.0%}" for each in results),
    ]


def _provider() -> MockProvider:
    return MockProvider(seed=_SEED, tokens=_TOKENS, token_delay_s=0.002, latency_s=0.01)


def _switch(providers: tuple[MockProvider, ...], scene: Scene, faults: str) -> None:
    for provider in providers:
        for model in scene.struck:
            provider.switch(model, faults)


def _config(provider_url: str, host: str, port: int, store: str) -> Config:
    url = f"{provider_url}/v1"
    env = {"OPENAI_URL": url, "AZURE_URL": url, "OPENAI_API_KEY": "mock", "AZURE_KEY": "mock"}
    env |= {"ANTHROPIC_URL": provider_url, "ANTHROPIC_API_KEY": "mock"}
    text = RECOMMENDED.read_text(encoding="utf-8").replace("\ndefaults:\n", f"\n{_OTHER_UPSTREAM}defaults:\n")
    config = parse_config(text + _OTHER_MODELS, RECOMMENDED.name, env)
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
