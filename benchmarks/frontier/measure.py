"""Plays one provider behind the gateway, and summarises the outcome of its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.frontier.providers import Course, Regime
from benchmarks.storm_matrix.measure import percentile
from benchmarks.virtual.clients import ClientCall, Load
from benchmarks.virtual.world import Played, play

MODEL = "model-a"
_UPSTREAM = '{dialect: openai, base_url: "https://%s.example/v1", api_key: sk-provider}'
_UPSTREAMS = f"upstreams: {{provider: {_UPSTREAM % 'provider'}, other: {_UPSTREAM % 'other'}}}\n"
ALONE = _UPSTREAMS + "models: {model-a: {deployments: [{upstream: provider}]}}\n"
WITH_STAND_IN = _UPSTREAMS + "models: {model-a: {deployments: [{upstream: provider}, {upstream: other}]}}\n"
WITH_FALLBACK = (
    _UPSTREAMS + "models:\n  model-a: {deployments: [{upstream: provider}], fallbacks: [model-b]}\n"
    "  model-b: {deployments: [{upstream: other}]}\n"
)
"""Configs with shipped defaults: one deployment; a second one of the same model; another model as a fallback."""


@dataclass(frozen=True, slots=True)
class Fared:
    """Results of the calls that arrived in a window of time."""

    calls: int
    served: float
    """Share of the calls, 0 to 1."""
    requests_per_call: float
    median_s: float
    p95_s: float
    p99_s: float
    """All three for the served calls."""
    ok_per_s: float
    requests_per_s: float


def run(
    regimes: Sequence[tuple[float, Regime]], calls_per_s: float, seconds: float, config: str = ALONE, seed: int = 7
) -> Played:
    """Plays the regimes with Poisson arrivals from 0 to `seconds`."""
    return play(config, Course(regimes, seed=seed), [Load(MODEL, calls_per_s, seconds)], seed=seed)


def fared(played: Played, begin_s: float, end_s: float) -> Fared:
    """Summarises the calls that arrived between the two times, and all requests that were sent for them."""
    calls = [call for call in played.calls if begin_s <= call.arrived_at < end_s]
    sent_for = Counter(request.call for request in played.requests)
    served = [call for call in calls if is_served(call)]
    took_s = [call.took_s for call in served]
    ended = sum(is_served(call) and begin_s <= call.ended_at < end_s for call in played.calls)
    return Fared(
        len(calls),
        len(served) / max(1, len(calls)),
        sum(sent_for[call.number] for call in calls) / max(1, len(calls)),
        percentile(took_s, 0.5) or 0.0,
        percentile(took_s, 0.95) or 0.0,
        percentile(took_s, 0.99) or 0.0,
        ended / (end_s - begin_s),
        sum(begin_s <= request.at < end_s for request in played.requests) / (end_s - begin_s),
    )


def is_served(call: ClientCall) -> bool:
    return call.outcome == "served"
