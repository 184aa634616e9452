"""Cost and delay of a streamed chunk: the gateway against a plain aiohttp relay of the same stream.

Both run on one processor, in turns, in one run. Measures in the middle of running streams, so that the cost of a call
(`compare`) is not included.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from uvloop import new_event_loop

from benchmarks.processes import Way, started
from benchmarks.rig import GATEWAYS_CPU, gateway
from benchmarks.stream_client import StreamClient, open_stream
from llm_guard.mock.load_result import percentiles

CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "{provider}/v1"}
models:
  gpt-4o: {deployments: [{upstream: provider}]RULES}
"""
PLAIN, GUARDED, CONTINUED = "aiohttp relay", "llm_guard", "llm_guard, recover: continue"
PROMISED_RATIO = 1.3

SIZES = ((50, 0.01), (1000, 0.2))
"""Concurrent streams, and seconds between a stream's chunks: five thousand chunks a second, which leaves the machine
idle time. A relay that is late passes on several chunks at once, which is cheaper.
"""
_ROUNDS = 7
SETTLE_S = 0.5
_WINDOW_S = 4.0
_OPEN_WITHIN_S = 30.0


class BrokenStreamsError(Exception):
    """Streams did not begin; the message says at which target and how many."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some seconds of one way."""

    chunks: int
    cpu_s: float
    writes: int
    delays_s: tuple[float, ...]
    broken: int
    """Streams that ended early."""


@dataclass(frozen=True, slots=True)
class WayCost:
    """Medians over rounds."""

    name: str
    cpu_s_per_chunk: float
    ratio: float
    """Relative to the plain relay in the same round."""
    lowest_ratio: float
    highest_ratio: float
    chunks_per_write: float
    """Above 1 the relay was late, and cheaper because it passed on several chunks together."""
    delay_p50_s: float
    """From the provider's write to the client's read."""
    delay_p99_s: float
    broken: int


@dataclass(frozen=True, slots=True)
class Size:
    """Results for a number of concurrent streams."""

    streams: int
    pace_s: float
    ways: tuple[WayCost, ...]


@dataclass(frozen=True, slots=True)
class RelayCost:
    rounds: int
    sizes: tuple[Size, ...]

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        for size in self.sizes:
            for way in size.ways:
                where = f"{size.streams} streams, {way.name}"
                if way.ratio > PROMISED_RATIO:
                    found.append(f"{where}: {way.ratio:.2f} times the CPU per chunk against {PROMISED_RATIO}")
                if way.broken:
                    found.append(f"{where}: {way.broken} streams broke")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def run(say: Callable[[str], None], rounds: int = _ROUNDS, window_s: float = _WINDOW_S) -> RelayCost:
    """Measures all ways at all sizes, the ways in turns."""
    sizes = []
    for place, (streams, pace_s) in enumerate(SIZES, 1):
        say(f"relay {place}/{len(SIZES)}: {streams} streams, a chunk every {pace_s * 1e3:.0f} ms")
        with ExitStack() as running:
            ways = _ways(running)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                windows = runner.run(_in_turns(ways, streams, pace_s, rounds, window_s))
        sizes.append(Size(streams, pace_s, sum_up(windows)))
    return RelayCost(rounds, tuple(sizes))


def sum_up(windows: dict[str, list[Window]]) -> tuple[WayCost, ...]:
    """Each way's cost, from its windows, one a round; includes the plain relay."""
    plain = [window.cpu_s / window.chunks for window in windows[PLAIN]]
    return tuple(_cost(name, found, plain) for name, found in windows.items())


def _cost(name: str, windows: Sequence[Window], plain: Sequence[float]) -> WayCost:
    costs = [window.cpu_s / window.chunks for window in windows]
    ratios = [cost / other for cost, other in zip(costs, plain, strict=True)]
    return WayCost(
        name,
        statistics.median(costs),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(window.chunks / window.writes for window in windows),
        statistics.median(percentiles(window.delays_s).p50 for window in windows),
        statistics.median(percentiles(window.delays_s).p99 for window in windows),
        sum(window.broken for window in windows),
    )


def _ways(running: ExitStack) -> list[Way]:
    provider = running.enter_context(started("benchmarks.relay_peers", "provider"))
    plain = running.enter_context(started("benchmarks.relay_peers", "plain", provider.url, cpu=GATEWAYS_CPU))
    guarded = running.enter_context(gateway(CONFIG.replace("RULES", ""), provider.url))
    continued = running.enter_context(gateway(CONFIG.replace("RULES", ", stream: {recover: continue}"), provider.url))
    named = {PLAIN: plain, GUARDED: guarded, CONTINUED: continued}
    return [Way(name, each.url, each.process) for name, each in named.items()]


async def _in_turns(
    ways: Sequence[Way], streams: int, pace_s: float, rounds: int, window_s: float
) -> dict[str, list[Window]]:
    windows: dict[str, list[Window]] = {way.name: [] for way in ways}
    for way in ways:  # warm-up: imports, pools, the allocator
        await watch(way, streams, pace_s, SETTLE_S)
    for turn in range(rounds):
        # The order alternates: the first one changes the state of the machine for the second.
        for way in ways if turn % 2 == 0 else reversed(ways):
            windows[way.name].append(await watch(way, streams, pace_s, window_s))
    return windows


async def watch(way: Way, streams: int, pace_s: float, seconds: float) -> Window:
    """Opens the streams through `way`, and measures for `seconds` once all run. Raises BrokenStreamsError."""
    async with open_streams(way, streams, pace_s) as clients:
        await asyncio.sleep(SETTLE_S)
        for client in clients:
            client.delays_s.clear()
        before, used_s = _counts(clients), way.cpu_s()
        await asyncio.sleep(seconds)
        used_s, after = way.cpu_s() - used_s, _counts(clients)
        broken = sum(client.ended.done() for client in clients)
        delays_s = tuple(delay for client in clients for delay in client.delays_s)
    return Window(after[0] - before[0], used_s, after[1] - before[1], delays_s, broken)


@asynccontextmanager
async def open_streams(way: Way, streams: int, pace_s: float) -> AsyncIterator[Sequence[StreamClient]]:
    """A context in which all streams have begun; at its end the clients leave. Raises BrokenStreamsError."""
    clients = [StreamClient("/v1/chat/completions", "gpt-4o", pace_s=pace_s) for _ in range(streams)]
    try:
        await _open(clients, way)
        yield clients
    finally:
        for client in clients:
            client.leave()
        await asyncio.sleep(SETTLE_S)  # the relay ends its side


async def _open(clients: Sequence[StreamClient], way: Way) -> None:
    try:
        async with asyncio.timeout(_OPEN_WITHIN_S):
            for client in clients:
                await open_stream(client, way.url)
            await asyncio.gather(*(client.begun.wait() for client in clients))
    except TimeoutError:
        missing = sum(not client.begun.is_set() for client in clients)
        raise BrokenStreamsError(f"{way.name}: {missing} streams have not begun in {_OPEN_WITHIN_S:.0f} s") from None
    if refused := sum(client.ended.done() for client in clients):
        raise BrokenStreamsError(f"{way.name}: {refused} of {len(clients)} streams did not even begin")


def _counts(clients: Sequence[StreamClient]) -> tuple[int, int]:
    return sum(client.events for client in clients), sum(client.frames for client in clients)
