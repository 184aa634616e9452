"""Cost of the operator's interface for calls: everything enabled and in use, against as much disabled as possible.

Two gateways with the same config except for its `ops` section, measured in turns, each alone on one processor.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.compare import ways
from benchmarks.compare.load import Calls, as_fast_as_possible
from benchmarks.processes import Way, started
from benchmarks.rig import gateway
from benchmarks.turns import PerRound, calls_per_s, cpu_s_per_call, in_turns, ratio

BARE, KEPT, WATCHED = "as much off as can be", "on, and nobody looks", "on, and looked at"
PROMISED_SHARE = 0.95
"""Relative to the calls a second without the operator's interface."""

RULES = (
    "success_rate", "latency", "calls_refused", "breaker_open", "failure_spike", "budget_exhausted",
    "credential_cooldown", "engine_gave_up", "engine_down", "engines_down", "engine_restarts", "reload_failed",
    "loop_lag",
)  # fmt: skip
TOKEN = "token-of-a-benchmark"  # for both gateways of this run
OFF = f"""
ops:
  token: {TOKEN}
  recent_calls: {{calls: 0}}
  alerts: {{{", ".join(f'{rule}: "off"' for rule in RULES)}}}
"""
ON = f"""
ops:
  token: {TOKEN}
  health: {{p95: 60s, first_token_p95: 30s}}
  webhooks: [{{name: team, url: "http://127.0.0.1:9/alerts", secret: {TOKEN}}}]
"""
"""Alerts and timelines have their defaults; the webhook is not used as long as no alert fires."""

ROUNDS = 8
_CONNECTIONS = 64
_WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of measurement."""

    rounds: int = ROUNDS
    seconds: float = 6.0
    """Duration of a turn: long enough for a scrape."""


@dataclass(frozen=True, slots=True)
class Operated:
    """A finished run: one value a round for each way."""

    rounds: int
    seconds: float
    calls_per_s: Mapping[str, tuple[float, ...]]
    cpu_s_per_call: Mapping[str, tuple[float, ...]]
    answers: Mapping[str, int]
    """Responses that the watchers got, by path."""
    errors: tuple[str, ...]

    def ratio(self, figure: PerRound, way: str) -> tuple[float, float, float]:
        """Ratio to `BARE`: the median over rounds, the lowest and the highest."""
        return ratio(figure, way, BARE)

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold, and errors."""
        share, _, _ = self.ratio(self.calls_per_s, WATCHED)
        told = f"calls a second with the operator's side on: {share:.3f} of those without, against {PROMISED_SHARE}"
        return [*([told] if share < PROMISED_SHARE else []), *self.errors]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = {
            name: {way: self.ratio(figure, way) for way in (KEPT, WATCHED)}
            for name, figure in (("calls_per_s", self.calls_per_s), ("cpu_s_per_call", self.cpu_s_per_call))
        }
        return {**asdict(self), "promised_share": PROMISED_SHARE, "ratios": ratios}


def run(say: Callable[[str], None], plan: Plan | None = None) -> Operated:
    """Measures all ways."""
    plan = plan or Plan()
    found: dict[str, list[Calls]] = {BARE: [], KEPT: [], WATCHED: []}
    answers: dict[str, int] = {}
    errors: list[str] = []
    with _gateways() as guarded:
        for way in guarded.values():
            as_fast_as_possible(way, _CONNECTIONS, _WARM_UP_S)
        for turn, name in in_turns((BARE, KEPT, WATCHED), plan.rounds):
            say(f"ops: {name}, round {turn + 1}/{plan.rounds}")
            with _watchers(guarded[name], name == WATCHED, answers, errors):
                calls = as_fast_as_possible(guarded[name], _CONNECTIONS, plan.seconds)
            found[name].append(calls)
            if calls.failed:
                errors.append(f"{name}: {calls.failed} calls failed ({calls.complaint})")
    return sum_up(plan, found, answers, errors)


def sum_up(
    plan: Plan, found: Mapping[str, Sequence[Calls]], answers: Mapping[str, int], errors: Sequence[str]
) -> Operated:
    """The figures of finished turns."""
    return Operated(
        plan.rounds,
        plan.seconds,
        calls_per_s(found),
        cpu_s_per_call(found),
        dict(answers),
        tuple(errors),
    )


@contextmanager
def _gateways() -> Iterator[dict[str, Way]]:
    with (
        started("benchmarks.relay_peers", "provider", "0") as provider,
        gateway(ways.CONFIG + OFF, provider.url) as bare,
        gateway(ways.CONFIG + ON, provider.url) as full,
    ):
        operated = Way(KEPT, full.url, full.process)
        yield {BARE: Way(BARE, bare.url, bare.process), KEPT: operated, WATCHED: operated}


@contextmanager
def _watchers(way: Way, is_watched: bool, answers: dict[str, int], errors: list[str]) -> Iterator[None]:
    """Runs the watchers during one turn, and adds their counts."""
    if not is_watched:
        yield
        return
    with started("benchmarks.ops_watchers", way.url, TOKEN) as watchers:
        yield
        try:
            seen = json.loads(watchers.ask())
        except queue.Empty:
            errors.append("the watchers say nothing any more")
            return
        for path, count in seen["answers"].items():
            answers[path] = answers.get(path, 0) + count
        answers["events"] = answers.get("events", 0) + seen["events"]
        if seen["failed"]:
            errors.append(f"{seen['failed']} looks failed ({seen['complaint']})")
