"""The cost of a call in a gateway with two worker processes, beside one with a single process, and beside two gateways
that share nothing.

Clients, provider and gateways share the machine's processors, so only processor time is compared: calls a second would
need processors that are free. A second process that works at the same time makes each slower, which the two gateways
show: what is above theirs is the price of workers.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import Started, cpu_s, started
from llm_guard.mock.load import closed_loop

ROUNDS, CALLS, CONNECTIONS = 7, 4000, 64
PROMISED = 1.1
"""Processor time of a call with two workers, relative to one process."""
_WARM_UP_CALLS = 1000

_CONFIG = """
server: {workers: {workers}}
ops: {port: 0, token: only-for-this-benchmark, store: "{folder}"}
upstreams: {mock: {dialect: openai, base_url: "{provider}/v1", api_key: sk}}
models: {mock: {deployments: [{upstream: mock}]}}
"""


@dataclass(frozen=True, slots=True)
class WorkersRun:
    """A finished run."""

    rounds: int
    calls: int
    connections: int
    one_us: list[float]
    """Processor time of a call with one process in microseconds, by round; two workers' with their parent's in
    `two_us`."""
    two_us: list[float]
    apart_us: list[float]
    """That of two gateways with one process each and half of the connections."""
    failed: int
    """Calls without a good response."""

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        return [two / one for one, two in zip(self.one_us, self.two_us, strict=True)]

    @property
    def ratio_to_apart(self) -> float:
        """The same, relative to the two gateways."""
        return median(two / apart for two, apart in zip(self.two_us, self.apart_us, strict=True))

    @property
    def broken(self) -> list[str]:
        """What does not hold."""
        found = []
        if self.ratio > PROMISED:
            found.append(f"two workers need {self.ratio:.2f} times the processor time of one process")
        if self.failed:
            found.append(f"{self.failed} calls failed")
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "ratio_to_apart": self.ratio_to_apart}


def run(say: Callable[[str], None], rounds: int = ROUNDS, calls: int = CALLS) -> WorkersRun:
    """Measures in turns: two minutes. Raises OSError, NotStartedError."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    one_us: list[float] = []
    two_us: list[float] = []
    apart_us: list[float] = []
    failed = 0
    with started("llm_guard", "mock", "--port", "0") as provider, _gateways(provider.url) as (one, two, other):
        for number in range(-1, rounds):
            say(f"workers: round {number + 1} of {rounds}" if number >= 0 else "workers: warm-up")
            for gateways, found in (((one,), one_us), ((two,), two_us), ((one, other), apart_us)):
                made = calls if number >= 0 else min(calls, _WARM_UP_CALLS)
                used_us, failures = asyncio.run(_used_us(gateways, made))
                failed += failures
                if number >= 0:
                    found.append(used_us)
    return WorkersRun(rounds, calls, CONNECTIONS, one_us, two_us, apart_us, failed)


@contextmanager
def _gateways(provider: str) -> Iterator[tuple[Started, Started, Started]]:
    """Yields one with one process, one with two workers, and another one with one process."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, workers in enumerate((1, 2, 1)):
            path = Path(folder, f"{number}.yaml")
            values = {"workers": str(workers), "folder": f"{folder}/{number}", "provider": provider}
            text = _CONFIG
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", value)
            path.write_text(text)
            paths.append(path)
        one, two, other = (("llm_guard", "serve", "-c", str(path), "--port", "0") for path in paths)
        with started(*one) as alone, started(*two) as together, started(*other) as apart:
            yield alone, together, apart


async def _used_us(gateways: Sequence[Started], calls: int) -> tuple[float, int]:
    """Returns the processor time of a call, and the failed calls. The gateways divide calls and connections."""
    processes = [process for one in gateways for process in (one.process, *one.process.children())]
    before, parts = sum(map(cpu_s, processes)), len(gateways)
    results = await asyncio.gather(
        *(closed_loop(gateway.url, CONNECTIONS // parts, calls // parts) for gateway in gateways)
    )
    return (sum(map(cpu_s, processes)) - before) / calls * 1e6, calls - sum(result.ok for result in results)
