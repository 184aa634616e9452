"""Measures all targets in turns, round by round: memory while fresh, then calls, then streams.

The targets are started in `ways`, the results interpreted in `result`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from uvloop import new_event_loop

from benchmarks.compare import result, ways
from benchmarks.compare.load import Calls, as_fast_as_possible, at_rate
from benchmarks.compare.result import Compared, cpu_s_per_chunk
from benchmarks.processes import Way
from benchmarks.relay import SETTLE_S, SIZES, BrokenStreamsError, open_streams, watch
from llm_guard.mock.load_result import percentiles

_NAN = float("nan")
_WARM_UP = (8, 0.3)


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of measurement; all of it takes some five minutes with Envoy, and one more for each peer."""

    rounds: int = 7
    connections: int = 64
    fast_s: float = 1.5
    alone_s: float = 1.0
    busy_per_s: float = 1000.0
    busy_connections: int = 16
    busy_s: float = 2.0
    stream_rounds: int = 5
    sizes: tuple[tuple[int, float], ...] = SIZES
    """Concurrent streams, and seconds between a stream's chunks."""
    window_s: float = 2.5
    idle_streams: int = 5000
    idle_pace_s: float = 10.0


@dataclass(slots=True)
class _Notes:
    """Results so far: a value of each figure for each target and round, nan if there is none."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    errors: list[str] = field(default_factory=list)

    def take(self, way: Way, values: dict[str, float], error: str = "") -> None:
        """Adds values; nan if something failed."""
        if error:
            self.errors.append(f"{way.name}: {error}")
        for figure, value in values.items():
            self.values[figure][way.name].append(_NAN if error else value)


def run(
    say: Callable[[str], None], peers: Sequence[Way] = (), envoy: Path | None = None, provider_port: int = 0,
    plan: Plan = Plan(), compiled: Path | None = None,
) -> Compared:  # fmt: skip
    """Measures everything. Raises OSError if so many streams are not allowed, and NotStartedError."""
    ways.allow_descriptors(plan.idle_streams)
    notes = _Notes()
    with ways.running(peers, envoy, provider_port, compiled) as found:
        for way in found[1:]:
            say(f"compare: memory of {way.name}, {plan.idle_streams} streams")
            _memory(way, plan, notes)
    # Restarted, because the idle streams have changed the processes' memory.
    with ways.running(peers, envoy, provider_port, compiled) as found:
        for way in _in_turns(found, plan.rounds, say, "calls"):
            _calls(way, plan, notes)
        for streams, pace_s in plan.sizes:
            out: set[str] = set()
            for way in _in_turns(found[1:], plan.stream_rounds, say, f"{streams} streams"):
                if way.name not in out and not _stream(way, streams, pace_s, plan, notes):
                    out.add(way.name)  # a further attempt would only take time
    return Compared(
        tuple(way.name for way in found), plan.idle_streams, plan.sizes, ways.versions(envoy),
        {figure: {name: tuple(each) for name, each in by_way.items()} for figure, by_way in notes.values.items()},
        tuple(notes.errors),
    )  # fmt: skip


def _in_turns(found: Sequence[Way], rounds: int, say: Callable[[str], None], what: str) -> Iterator[Way]:
    for turn in range(rounds):
        say(f"compare: {what}, round {turn + 1}/{rounds}")
        # The order alternates: the first one changes the state of the machine for the second.
        yield from found if turn % 2 == 0 else reversed(found)


def _memory(way: Way, plan: Plan, notes: _Notes) -> None:
    error, rest_bytes, during_bytes = "", _NAN, _NAN
    try:
        as_fast_as_possible(way, *_WARM_UP)
        rest_bytes = way.rss_bytes()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            during_bytes, broken = runner.run(_hold(way, plan))
        error = f"{broken} of {plan.idle_streams} idle streams broke" if broken else ""
    except (BrokenStreamsError, OSError) as failure:
        error = str(failure)
    notes.take(way, {result.REST_BYTES: rest_bytes})
    notes.take(way, {result.BYTES_PER_STREAM: (during_bytes - rest_bytes) / plan.idle_streams}, error)


async def _hold(way: Way, plan: Plan) -> tuple[float, int]:
    async with open_streams(way, plan.idle_streams, plan.idle_pace_s) as clients:
        await asyncio.sleep(SETTLE_S)
        return way.rss_bytes(), sum(client.ended.done() for client in clients)


def _calls(way: Way, plan: Plan, notes: _Notes) -> None:
    def ask(what: str, run: Callable[[], Calls], figures: Callable[[Calls], dict[str, float]]) -> None:
        try:
            calls = run()
        except OSError as failure:
            calls = Calls(1.0, _NAN, (), 1, str(failure))
        made = len(calls.latencies_s) + calls.failed
        error = f"{what}: {calls.failed} of {made} calls failed ({calls.complaint})" if calls.failed else ""
        notes.take(way, figures(calls), error)

    ask(f"{plan.connections} connections", lambda: as_fast_as_possible(way, plan.connections, plan.fast_s), _throughput)
    ask("one connection", lambda: as_fast_as_possible(way, 1, plan.alone_s), _alone)
    ask(
        f"{plan.busy_per_s:.0f} calls a second",
        lambda: at_rate(way, plan.busy_connections, plan.busy_per_s, plan.busy_s), _busy,
    )  # fmt: skip


def _throughput(calls: Calls) -> dict[str, float]:
    made = len(calls.latencies_s)
    return {result.CALLS_PER_S: made / calls.seconds, result.CPU_S_PER_CALL: calls.cpu_s / made if made else _NAN}


def _alone(calls: Calls) -> dict[str, float]:
    found = percentiles(calls.latencies_s)
    return {result.ALONE_P50_S: found.p50, result.ALONE_P99_S: found.p99}


def _busy(calls: Calls) -> dict[str, float]:
    found = percentiles(calls.latencies_s)
    return {result.BUSY_P50_S: found.p50, result.BUSY_P99_S: found.p99}


def _stream(way: Way, streams: int, pace_s: float, plan: Plan, notes: _Notes) -> bool:
    figure = cpu_s_per_chunk(streams)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            window = runner.run(watch(way, streams, pace_s, plan.window_s))
    except (BrokenStreamsError, OSError) as failure:
        notes.take(way, {figure: _NAN}, f"{streams} streams: {failure}")
        return False
    error = f"{streams} streams: {window.broken} broke" if window.broken else ""
    notes.take(way, {figure: window.cpu_s / window.chunks if window.chunks else _NAN}, error)
    return not error
