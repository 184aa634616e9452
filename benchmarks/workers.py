"""The cost of a call in a gateway with two worker processes, beside one with a single process.

Clients, provider and gateways share the machine's processors, so only processor time is compared: calls a second would
need processors that are free.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
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
    def broken(self) -> list[str]:
        """What does not hold."""
        found = []
        if self.ratio > PROMISED:
            found.append(f"two workers need {self.ratio:.2f} times the processor time of one process")
        if self.failed:
            found.append(f"{self.failed} calls failed")
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}


def run(say: Callable[[str], None], rounds: int = ROUNDS, calls: int = CALLS) -> WorkersRun:
    """Measures in turns: a minute or two. Raises OSError, NotStartedError."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    one_us: list[float] = []
    two_us: list[float] = []
    failed = 0
    with started("llm_guard", "mock", "--port", "0") as provider, _gateways(provider.url) as (one, two):
        for number in range(-1, rounds):
            say(f"workers: round {number + 1} of {rounds}" if number >= 0 else "workers: warm-up")
            for gateway, found in ((one, one_us), (two, two_us)):
                made = calls if number >= 0 else min(calls, _WARM_UP_CALLS)
                used_us, failures = _used_us(gateway, made)
                failed += failures
                if number >= 0:
                    found.append(used_us)
    return WorkersRun(rounds, calls, CONNECTIONS, one_us, two_us, failed)


@contextmanager
def _gateways(provider: str) -> Iterator[tuple[Started, Started]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for workers in (1, 2):
            path = Path(folder, f"{workers}.yaml")
            values = {"workers": str(workers), "folder": f"{folder}/{workers}", "provider": provider}
            text = _CONFIG
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", value)
            path.write_text(text)
            paths.append(path)
        one, two = (("llm_guard", "serve", "-c", str(path), "--port", "0") for path in paths)
        with started(*one) as alone, started(*two) as together:
            yield alone, together


def _used_us(gateway: Started, calls: int) -> tuple[float, int]:
    """Returns the processor time of a call, and the failed calls."""
    processes = [gateway.process, *gateway.process.children()]
    before = sum(map(cpu_s, processes))
    result = asyncio.run(closed_loop(gateway.url, CONNECTIONS, calls))
    return (sum(map(cpu_s, processes)) - before) / calls * 1e6, calls - result.ok
