"""The same providers without a gateway, with an SDK's retries, and behind Envoy's defaults.

Envoy (1.3x, route retry policy with its defaults): one retry after 25 ms with full jitter, at most three at once for a
cluster (`circuit_breakers.thresholds.max_retries`); with one host it refuses nothing, because a cluster with all hosts
ejected is used as if none were (panic threshold). The SDKs of OpenAI and Anthropic: two retries after 0.5 s and 1 s,
less up to a quarter of each.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.frontier.providers import ANSWER_S, Course, Regime
from benchmarks.virtual.provider import Request

NONE, SDK, ENVOY = "no gateway", "SDK, two retries", "Envoy's defaults"
PEERS = (NONE, SDK, ENVOY)
_RETRIES = {NONE: 0, SDK: 2, ENVOY: 1}
_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Point:
    served: float
    """Share of the calls, 0 to 1."""
    requests_per_call: float


def measure(peer: str, regimes: Sequence[tuple[float, Regime]], calls_per_s: float, seconds: float) -> Point:
    """Measures with Poisson arrivals, like `measure.run`."""
    dice, provider = Random("arrivals"), Course(regimes)
    due: list[tuple[float, int, int]] = []  # due time, call number, number of retries before
    at, calls = dice.expovariate(calls_per_s), 0
    while at < seconds:
        due.append((at, calls, 0))
        calls += 1
        at += dice.expovariate(calls_per_s)
    requests = served = 0
    retrying: list[float] = []
    while due:
        now, call, retries = heapq.heappop(due)
        requests += 1
        answer = provider.answer(Request(now, provider.origin, "model-a", call))
        ended_at = now + answer.delay_s
        if answer.status == 200:
            served += 1
        elif retries < _RETRIES[peer]:
            retrying = [end for end in retrying if end > now]
            if peer != ENVOY or len(retrying) < _AT_ONCE:
                wait_s = _wait_s(peer, retries, dice)
                retrying.append(ended_at + wait_s + ANSWER_S)
                heapq.heappush(due, (ended_at + wait_s, call, retries + 1))
    return Point(served / calls, requests / calls)


def _wait_s(peer: str, retries: int, dice: Random) -> float:
    if peer == ENVOY:
        return dice.random() * 0.025
    return float(0.5 * 2**retries * (1 - dice.random() / 4))
