"""What the gateway costs when nothing is wrong: added latency, throughput, memory and time of concurrent streams.

Absolute figures depend on the machine; the gateway and the provider alone are measured in turns, in one run.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.rig import Rig, rig
from llm_guard.mock.load import closed_loop
from llm_guard.mock.load_result import LoadResult

CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "{provider}/v1"}
models:
  gpt-4o: {deployments: [{upstream: provider}]}
"""

_ROUNDS = 20
_CALLS_PER_ROUND = 200
_STREAMS = 1000


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, bytes, calls a second."""

    direct_p50_s: float
    """One connection, provider alone: median over rounds."""
    guarded_p50_s: float
    added_p50_s: float
    """Median over rounds of the difference, each round measured both ways."""
    added_p99_s: float
    direct_per_s: float
    """64 connections."""
    guarded_per_s: float
    cpu_s_per_call: float
    """Of the gateway's process, at 64 connections."""
    streams: int
    streams_ok: int
    streams_first_token_p99_s: float
    rss_before_bytes: int
    rss_during_bytes: int
    cpu_s_per_chunk: float

    @property
    def broken(self) -> list[str]:
        """What was promised and did not hold."""
        broken = []
        if self.added_p50_s >= 0.001:
            broken.append(f"added latency {self.added_p50_s * 1e3:.2f} ms against 1 ms")
        if self.streams_ok < self.streams:
            broken.append(f"{self.streams - self.streams_ok} of {self.streams} streams broke")
        return broken

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def run(say: Callable[[str], None]) -> Cost:
    """Latency and throughput against a quick provider, then streams that are open at the same time."""
    say("cost 1/2: latency at one connection, throughput at 64")
    with rig(CONFIG) as running:
        latency = asyncio.run(_latency(running))
        throughput = asyncio.run(_throughput(running))
    say(f"cost 2/2: {_STREAMS} concurrent streams")
    with rig(CONFIG, "--tokens", "50", "--token-delay-ms", "200") as running:
        streams = asyncio.run(_streams(running))
    return Cost(*latency, *throughput, *streams)


async def _latency(running: Rig) -> tuple[float, float, float, float]:
    await _in_turns(running, 1, 500)
    rounds = [await _in_turns(running, 1, _CALLS_PER_ROUND) for _ in range(_ROUNDS)]
    return (
        statistics.median(direct.latency.p50 for direct, _ in rounds),
        statistics.median(guarded.latency.p50 for _, guarded in rounds),
        statistics.median(guarded.latency.p50 - direct.latency.p50 for direct, guarded in rounds),
        statistics.median(guarded.latency.p99 - direct.latency.p99 for direct, guarded in rounds),
    )


async def _throughput(running: Rig) -> tuple[float, float, float]:
    await _in_turns(running, 64, 2000)
    direct = await closed_loop(running.provider_url, 64, 10_000, model="gpt-4o")
    cpu_s = running.cpu_s()
    guarded = await closed_loop(running.gateway_url, 64, 10_000, model="gpt-4o")
    return direct.calls_per_s, guarded.calls_per_s, (running.cpu_s() - cpu_s) / guarded.calls


async def _in_turns(running: Rig, concurrency: int, calls: int) -> tuple[LoadResult, LoadResult]:
    direct = await closed_loop(running.provider_url, concurrency, calls, model="gpt-4o")
    return direct, await closed_loop(running.gateway_url, concurrency, calls, model="gpt-4o")


async def _streams(running: Rig) -> tuple[int, int, float, int, int, float]:
    await closed_loop(running.gateway_url, 10, 10, model="gpt-4o", stream=True)
    before, cpu_s = running.rss_bytes(), running.cpu_s()
    load = asyncio.ensure_future(closed_loop(running.gateway_url, _STREAMS, _STREAMS, model="gpt-4o", stream=True))
    await asyncio.sleep(6)
    during = running.rss_bytes()
    result = await load
    per_chunk = (running.cpu_s() - cpu_s) / (_STREAMS * 50)
    return _STREAMS, result.ok, result.first_token.p99, before, during, per_chunk
