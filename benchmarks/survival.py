"""Scenarios over real sockets: what clients get from a misbehaving provider, directly and through the gateway.

Each row says what was promised, so that a run shows what holds and what does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.rig import Rig, rig
from llm_guard.mock.load import LoadPlan, run_load
from llm_guard.mock.load_result import LoadResult

CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "{provider}/v1"}
defaults:
  timeout: {connect: 1s, first_token: 1s, idle: 1s, attempt: 1s, total: 10s}
models:
  healthy: {deployments: [{upstream: provider, model: gpt-4o}]}
  answers-503: {deployments: [{upstream: provider, model: "gpt-4o+status:503@10%"}]}
  never-answers: {deployments: [{upstream: provider, model: "gpt-4o+silence@5%"}]}
  resets: {deployments: [{upstream: provider, model: "gpt-4o+reset@10%"}]}
  cuts: {deployments: [{upstream: provider, model: "gpt-4o+cut:0@20%"}]}
  errs: {deployments: [{upstream: provider, model: "gpt-4o+error:0@20%"}]}
  down: {deployments: [{upstream: provider, model: "gpt-4o-mini+status:500"}]}
  down-with-fallback: {deployments: [{upstream: provider, model: "gpt-4o-nano+status:500"}], fallbacks: [healthy]}
"""

_RATE_PER_S = 100.0
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Promise:
    """Bounds on what clients see through the gateway; None promises nothing."""

    success: float | None = None
    """At least."""
    requests_per_call: float | None = None
    """At most."""
    p99_s: float | None = None
    """At most, of successful calls."""
    median_failure_s: float | None = None
    """At most, of failed calls."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    alias: str
    provider_model: str
    promise: Promise
    is_stream: bool = False
    beside: str | None = None
    """Another alias on the same upstream, called at the same time; the row is about `alias`."""


SCENARIOS = (
    Scenario("nothing is wrong", "healthy", "gpt-4o", Promise(1.0, 1.0)),
    Scenario("10 % answer 503", "answers-503", "gpt-4o+status:503@10%", Promise(0.998, 1.15)),
    Scenario("5 % never answer, limit 1 s", "never-answers", "gpt-4o+silence@5%", Promise(0.995, None, 1.4)),
    Scenario("10 % reset the connection", "resets", "gpt-4o+reset@10%", Promise(0.998, 1.15)),
    Scenario("20 % of streams cut before a token", "cuts", "gpt-4o+cut:0@20%", Promise(0.98), is_stream=True),
    Scenario("20 % of streams err inside a 200", "errs", "gpt-4o+error:0@20%", Promise(0.98), is_stream=True),
    Scenario("another model of the upstream is down", "healthy", "gpt-4o", Promise(1.0, 1.0), beside="down"),
    Scenario("the model is down, with a fallback", "down-with-fallback", "gpt-4o-nano+status:500", Promise(1.0)),
    Scenario("the model is down", "down", "gpt-4o-mini+status:500", Promise(None, 0.06, None, 0.01)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario as measured."""

    name: str
    promise: Promise
    direct: LoadResult
    guarded: LoadResult
    requests_per_call: float
    broken: tuple[str, ...] = field(default=())
    """What was promised and did not hold."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "promise": asdict(self.promise),
            "direct": self.direct.as_dict(),
            "guarded": self.guarded.as_dict(),
            "requests_per_call": self.requests_per_call,
            "broken": list(self.broken),
        }


def run(say: Callable[[str], None], seconds: float = _SECONDS) -> list[Row]:
    """Every scenario, each with provider and gateway started afresh."""
    rows = []
    for number, scenario in enumerate(SCENARIOS, 1):
        say(f"survival {number}/{len(SCENARIOS)}: {scenario.name}")
        with rig(CONFIG, "--latency-ms", "20", "--seed", "7") as running:
            row = asyncio.run(_measure(running, scenario, seconds))
        verdict = "; ".join(row.broken) or "holds"
        say(
            f"    {row.direct.success_share:.2%} -> {row.guarded.success_share:.2%}, "
            f"{row.requests_per_call:.3f} requests per call, p99 {row.guarded.latency.p99:.3f} s: {verdict}"
        )
        rows.append(row)
    return rows


async def _measure(running: Rig, scenario: Scenario, seconds: float) -> Row:
    direct = await run_load(_plan(running.provider_url, scenario.provider_model, scenario, min(seconds, 10.0)))
    before = _requests(running, scenario)
    plan = _plan(running.gateway_url, scenario.alias, scenario, seconds)
    if scenario.beside is None:
        guarded = await run_load(plan)
    else:
        beside = _plan(running.gateway_url, scenario.beside, scenario, seconds)
        guarded, _ = await asyncio.gather(run_load(plan), run_load(beside))
    per_call = (_requests(running, scenario) - before) / guarded.calls
    return Row(scenario.name, scenario.promise, direct, guarded, per_call, _broken(scenario.promise, guarded, per_call))


def _requests(running: Rig, scenario: Scenario) -> int:
    """What the scenario's own model has cost the provider, and its fallback."""
    models = {scenario.provider_model} | ({"gpt-4o"} if scenario.alias == "down-with-fallback" else set())
    return sum(running.upstream_requests(model) for model in models)


def _plan(url: str, model: str, scenario: Scenario, seconds: float) -> LoadPlan:
    return LoadPlan(url, (model,), _RATE_PER_S, seconds=seconds, stream=scenario.is_stream, timeout_s=10.0)


def _broken(promise: Promise, result: LoadResult, requests_per_call: float) -> tuple[str, ...]:
    bounds = (
        ("success", promise.success, -1, result.success_share),
        ("requests per call", promise.requests_per_call, 1, requests_per_call),
        ("p99", promise.p99_s, 1, result.latency.p99),
        ("median failure", promise.median_failure_s, 1, result.failed_latency.p50),
    )
    return tuple(
        f"{name} {measured:.4f} against {bound:g}"
        for name, bound, sign, measured in bounds
        if bound is not None and sign * measured > sign * bound
    )
