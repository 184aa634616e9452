"""Cost of a call compared with an earlier version of the gateway, and the additional cost of client keys.

Gateways are restarted in each round and measured in turns, each alone on one processor: see `benchmarks.lasting`. The
turns are split into pieces that alternate: the speed of a shared processor changes within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.compare import ways
from benchmarks.compare.load import Calls, as_fast_as_possible
from benchmarks.processes import Way, started
from benchmarks.rig import gateway
from benchmarks.turns import PerRound, calls_per_s, cpu_s_per_call, in_turns, joined, ratio

BEFORE, NOW, KEYS = "earlier version", "this version", "this version with client keys"
PROMISED_CPU = 1.01
"""CPU time of this version, relative to the earlier one."""
PROMISED_KEYS = 1.03
"""CPU time with client keys, relative to this version without."""

CLIENT_KEYS = """
server:
  client_keys:
    - name: measured
      key: sk-benchmark
      allow: {models: [gpt-4o, gpt-4o-mini]}
      limits: {rate: 1000000, concurrency: 10000, tokens_per_minute: 1000000000, tokens_per_day: 1000000000000}
    - {name: another, key: sk-another}
"""

ROUNDS = 12
_CONNECTIONS = 64
_WARM_UP_S = 2.0
_PIECES = 12
_VARIABLES = {"PYTHONHASHSEED": "0"}
"""With a seed of its own, each process lays out its dictionaries differently: several per cent of a call."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of measurement."""

    earlier: Path
    """Folder of the earlier llm_guard package."""
    commit: str
    """Its commit, as named on the page."""
    rounds: int = ROUNDS
    seconds: float = 6.0
    """Duration of a turn."""


@dataclass(frozen=True, slots=True)
class Since:
    """A finished run: one value a round for each way."""

    commit: str
    rounds: int
    seconds: float
    calls_per_s: Mapping[str, tuple[float, ...]]
    cpu_s_per_call: Mapping[str, tuple[float, ...]]
    errors: tuple[str, ...]

    def ratio(self, figure: PerRound, way: str) -> tuple[float, float, float]:
        """Ratio to `BEFORE`: the median over rounds, the lowest and the highest."""
        return ratio(figure, way, BEFORE)

    @property
    def keys_ratio(self) -> tuple[float, float, float]:
        """CPU time with client keys, relative to `NOW`."""
        return ratio(self.cpu_s_per_call, KEYS, NOW)

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold, and errors."""
        cost, keys = self.ratio(self.cpu_s_per_call, NOW)[0], self.keys_ratio[0]
        found = []
        if cost > PROMISED_CPU:
            found.append(f"CPU per call: {cost:.3f} of {self.commit}, against {PROMISED_CPU}")
        if keys > PROMISED_KEYS:
            found.append(f"CPU per call with client keys: {keys:.3f} of that without, against {PROMISED_KEYS}")
        return [*found, *self.errors]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **asdict(self),
            "promised_cpu": PROMISED_CPU,
            "promised_keys": PROMISED_KEYS,
            "ratio": self.ratio(self.cpu_s_per_call, NOW),
            "keys_ratio": self.keys_ratio,
        }


def run(say: Callable[[str], None], plan: Plan) -> Since:
    """Measures all ways."""
    found: dict[str, list[Calls]] = {BEFORE: [], NOW: [], KEYS: []}
    errors: list[str] = []
    for turn, names in groupby(in_turns(tuple(found), plan.rounds), key=itemgetter(0)):
        with _gateways(plan.earlier) as guarded:
            for way in guarded.values():
                as_fast_as_possible(way, _CONNECTIONS, _WARM_UP_S)
            say(f"since: round {turn + 1}/{plan.rounds}")
            pieces: dict[str, list[Calls]] = {name: [] for _, name in names}
            for _ in range(_PIECES):
                for name, done in pieces.items():
                    done.append(as_fast_as_possible(guarded[name], _CONNECTIONS, plan.seconds / _PIECES))
            for name, done in pieces.items():
                calls = joined(done)
                found[name].append(calls)
                if calls.failed:
                    errors.append(f"{name}: {calls.failed} calls failed ({calls.complaint})")
    return sum_up(plan, found, errors)


def sum_up(plan: Plan, found: Mapping[str, Sequence[Calls]], errors: Sequence[str]) -> Since:
    """The figures of finished turns."""
    return Since(plan.commit, plan.rounds, plan.seconds, calls_per_s(found), cpu_s_per_call(found), tuple(errors))


def configs() -> dict[str, str]:
    """Configs by way."""
    keyed = ways.CONFIG.replace('base_url: "{provider}/v1"}', 'base_url: "{provider}/v1", api_key: sk-provider}')
    return {BEFORE: ways.CONFIG, NOW: ways.CONFIG, KEYS: f"{CLIENT_KEYS}{keyed}"}


@contextmanager
def _gateways(earlier: Path) -> Iterator[dict[str, Way]]:
    with ExitStack() as stack:
        provider = stack.enter_context(started("benchmarks.relay_peers", "provider", "0"))
        running = {}
        for name, config in configs().items():
            own = stack.enter_context(gateway(config, provider.url, earlier if name == BEFORE else None, _VARIABLES))
            running[name] = Way(name, own.url, own.process)
        yield running
