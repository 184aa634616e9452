"""What `llm-guard chaos` plays: each trouble at each upstream, for each model, each with a fresh gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from llm_guard.app import App, create_app
from llm_guard.cli.chaos.stand_ins import KEY, on_stand_ins
from llm_guard.config import Config, is_pattern
from llm_guard.dialects import DialectName
from llm_guard.mock.load import LoadPlan, key_headers, run_load
from llm_guard.mock.provider import MockProvider

_WARM_UP_S = 1.0
_LATENCY_S = 0.05
_TOKENS = 8
_SEED = 7
_GOOD, _POOR = 0.99, 0.9


@dataclass(frozen=True, slots=True)
class Trouble:
    """A way in which an upstream misbehaves."""

    name: str
    faults: str
    """In the mock provider's grammar; `{half:.6f}` is half of the calls per second."""
    is_stream: bool = False


TROUBLES = (
    Trouble("is down", "status:503"),
    Trouble("refuses 40 %", "status:503@40%"),
    Trouble("is silent", "silence"),
    Trouble("cuts every stream", "cut:3", is_stream=True),
    Trouble("takes half of the rate", "limit:{half:.6f}/s"),
    Trouble("takes 3 s longer", "latency:3s"),
)


@dataclass(frozen=True, slots=True)
class ChaosScene:
    """One trouble at one upstream, while clients call one model."""

    upstream: str
    trouble: Trouble
    model: str
    """The model's entry in the config."""
    called: str
    """The name that clients send: the entry's, or one that its pattern matches."""
    dialect: DialectName
    struck: frozenset[str]
    """The names of all models that the upstream gets, fallbacks of this one among them: all are in trouble."""


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """What clients saw in a scene."""

    upstream: str
    trouble: str
    model: str
    calls: int
    served: float
    """Share of the calls, from 0 to 1."""
    direct: float
    """The same of clients that call the upstream themselves."""
    p50_s: float
    p99_s: float
    """Of the calls that were served; 0: none was."""
    requests_per_call: float
    """Requests to all upstreams, per call."""
    tokens_generated: int
    """Output tokens that all upstreams have generated."""
    tokens_wasted: int
    """Those of them in answers that no client got whole, and in streams that were begun again."""
    served_by: Mapping[str, int]
    """Calls served by each deployment."""
    errors: Mapping[str, int]
    """Failed calls by what the client saw."""
    sent_late_s: float = 0.0
    """By how much this machine sent a call too late, at most: so much too long may the latencies be."""

    @property
    def wasted(self) -> float:
        """Share of the generated tokens that were wasted; 0 if none was generated."""
        return self.tokens_wasted / self.tokens_generated if self.tokens_generated else 0.0

    @property
    def grade(self) -> Literal["good", "poor", "bad"]:
        """How much was served: at least 99 %, at least 90 %, or less."""
        return "good" if self.served >= _GOOD else "poor" if self.served >= _POOR else "bad"


def scenes_of(config: Config, only: Sequence[str] = ()) -> Iterator[ChaosScene]:
    """Yields all scenes: of all upstreams that a model leads to, or `only` of some."""
    for upstream, facts in config.upstreams.items():
        if only and upstream not in only:
            continue
        names = {key: key.replace("*", "chaos") if is_pattern(key) else key for key in config.models}
        sent = {
            key: {one.model or names[key] for one in model.deployments if one.upstream == upstream}
            for key, model in config.models.items()
        }
        struck = frozenset[str]().union(*sent.values())
        for key in config.models:
            if sent[key]:
                for trouble in TROUBLES:
                    yield ChaosScene(upstream, trouble, key, names[key], facts.dialect, struck)


async def play(config: Config, scene: ChaosScene, rate_per_s: float, seconds: float, patience_s: float) -> ChaosResult:
    """Plays one scene, with a gateway and stand-ins of its own."""
    async with AsyncExitStack() as stack:
        providers = {
            name: await stack.enter_async_context(MockProvider(_SEED, _TOKENS, latency_s=_LATENCY_S))
            for name in config.upstreams
        }
        alone = await stack.enter_async_context(MockProvider(_SEED, _TOKENS, latency_s=_LATENCY_S))
        folder = stack.enter_context(TemporaryDirectory(prefix="llm-guard-chaos-"))
        urls = {name: provider.url for name, provider in providers.items()}
        app = create_app(on_stand_ins(config, urls, folder))
        await app.start()
        stack.push_async_callback(app.stop)
        await run_load(_plan(scene, app.addresses[0], rate_per_s, _WARM_UP_S, patience_s))
        before, sent = await _served_by(app), _sent(providers)
        faults = scene.trouble.faults.format(half=rate_per_s / 2)
        for name in scene.struck:
            providers[scene.upstream].switch(name, faults)
        alone.switch(scene.called, faults)
        guarded, direct = await asyncio.gather(
            run_load(_plan(scene, app.addresses[0], rate_per_s, seconds, patience_s)),
            run_load(_plan(scene, alone.url, rate_per_s, seconds, patience_s)),
        )
        served_by = {label: count - before.get(label, 0) for label, count in (await _served_by(app)).items()}
        used = _sent(providers).since(sent)
        # A static answer has no tokens, and a client that left has none either: the smaller number got them.
        delivered = _TOKENS * min(guarded.ok, sum(served_by.values()))
        return ChaosResult(
            scene.upstream, scene.trouble.name, scene.model, guarded.calls, guarded.success_share, direct.success_share,
            guarded.latency.p50, guarded.latency.p99, used.requests / guarded.calls, used.tokens,
            max(0, used.tokens - delivered), {label: count for label, count in served_by.items() if count},
            guarded.errors, max(guarded.sent_late_s, direct.sent_late_s),
        )  # fmt: skip


def _plan(scene: ChaosScene, url: str, rate_per_s: float, seconds: float, patience_s: float) -> LoadPlan:
    return LoadPlan(
        url, (scene.called,), rate_per_s, seconds=seconds, stream=scene.trouble.is_stream, dialect=scene.dialect,
        headers=key_headers(KEY, scene.dialect), timeout_s=patience_s,
    )  # fmt: skip


async def _served_by(app: App) -> dict[str, int]:
    snapshot = await app.ops.overview.snapshot()
    return {one.deployment: one.outcomes.get("ok", 0) for one in snapshot.deployments}


class _Sent(NamedTuple):
    """What all stand-ins have done so far."""

    requests: int
    tokens: int

    def since(self, before: _Sent) -> _Sent:
        return _Sent(self.requests - before.requests, self.tokens - before.tokens)


def _sent(providers: Mapping[str, MockProvider]) -> _Sent:
    stats = [provider.stats() for provider in providers.values()]
    return _Sent(sum(sum(one.by_model.values()) for one in stats), sum(one.output_tokens for one in stats))
