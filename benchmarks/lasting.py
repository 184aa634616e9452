"""Cost of the features that outlive a call for calls that do not use them, and cost of a cached response.

Gateways with the same config except for these features, measured in turns, each alone on one processor. They are
restarted in each round: the memory layout of a process makes a difference of two per cent, which would be attributed to
the config.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from benchmarks.compare import ways
from benchmarks.compare.load import Calls, as_fast_as_possible
from benchmarks.processes import Way, started
from benchmarks.rig import gateway
from benchmarks.turns import PerRound, calls_per_s, cpu_s_per_call, in_turns, ratio

OFF, ELSEWHERE, HITS = "all off", "on for other models", "cached answers"
PROMISED_CPU = 1.02
"""For calls that use none of it while others do; relative to the CPU time with all of it off."""

NONE = '  dead_letter: "off"\n  deferred: {mode: "off"}\n'
OTHERS = """
  kept:
    deployments: [{upstream: probed}]
    cache: {ttl: 5m, stale_while_revalidate: 1m, stale_if_error: 1h}
    dead_letter: always
    deferred: {mode: on_failure}
    degraded: {static_response: "Please come back later."}
"""
PROBED = '\n  probed: {dialect: openai, base_url: "{provider}/v1", probe: {path: /health, interval: 1s}}'
CACHED = "    cache: {ttl: 1h}\n"

ROUNDS = 12
_CONNECTIONS = 64
_WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of measurement."""

    rounds: int = ROUNDS
    seconds: float = 4.0
    """Duration of a turn."""


@dataclass(frozen=True, slots=True)
class Lasted:
    """A finished run: one value a round for each way."""

    rounds: int
    seconds: float
    calls_per_s: Mapping[str, tuple[float, ...]]
    cpu_s_per_call: Mapping[str, tuple[float, ...]]
    errors: tuple[str, ...]

    def ratio(self, figure: PerRound, way: str) -> tuple[float, float, float]:
        """Ratio to `OFF`: the median over rounds, the lowest and the highest."""
        return ratio(figure, way, OFF)

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold, and errors."""
        cost, _, _ = self.ratio(self.cpu_s_per_call, ELSEWHERE)
        told = f"CPU of a call that uses none of it: {cost:.3f} of one where all is off, against {PROMISED_CPU}"
        return [*([told] if cost > PROMISED_CPU else []), *self.errors]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = {
            name: {way: self.ratio(figure, way) for way in (ELSEWHERE, HITS)}
            for name, figure in (("calls_per_s", self.calls_per_s), ("cpu_s_per_call", self.cpu_s_per_call))
        }
        return {**asdict(self), "promised_cpu": PROMISED_CPU, "ratios": ratios}


def configs() -> dict[str, str]:
    """Configs by way, without the state folder."""
    upstreams, rest = ways.CONFIG.split("\ndefaults:\n")
    elsewhere = f"{upstreams}{PROBED}\ndefaults:\n{rest.rstrip()}\n{OTHERS.lstrip(chr(10))}"
    return {
        OFF: ways.CONFIG.replace("\ndefaults:\n", f"\ndefaults:\n{NONE}"),
        ELSEWHERE: elsewhere,
        HITS: ways.CONFIG.replace("\ndefaults:\n", f"\ndefaults:\n  {CACHED.lstrip()}"),
    }


def run(say: Callable[[str], None], plan: Plan | None = None) -> Lasted:
    """Measures all ways."""
    plan = plan or Plan()
    found: dict[str, list[Calls]] = {OFF: [], ELSEWHERE: [], HITS: []}
    errors: list[str] = []
    for turn, names in groupby(in_turns(tuple(found), plan.rounds), key=itemgetter(0)):
        with _gateways() as guarded:
            for way in guarded.values():
                as_fast_as_possible(way, _CONNECTIONS, _WARM_UP_S)
            for _, name in names:
                say(f"lasting: {name}, round {turn + 1}/{plan.rounds}")
                calls = as_fast_as_possible(guarded[name], _CONNECTIONS, plan.seconds)
                found[name].append(calls)
                if calls.failed:
                    errors.append(f"{name}: {calls.failed} calls failed ({calls.complaint})")
    return sum_up(plan, found, errors)


def sum_up(plan: Plan, found: Mapping[str, Sequence[Calls]], errors: Sequence[str]) -> Lasted:
    """The figures of finished turns."""
    return Lasted(plan.rounds, plan.seconds, calls_per_s(found), cpu_s_per_call(found), tuple(errors))


@contextmanager
def _gateways() -> Iterator[dict[str, Way]]:
    with ExitStack() as stack:
        provider = stack.enter_context(started("benchmarks.relay_peers", "provider", "0"))
        running = {}
        for name, config in configs().items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            own = stack.enter_context(gateway(f"{config}\nops: {{store: {folder}}}\n", provider.url))
            running[name] = Way(name, own.url, own.process)
        yield running
