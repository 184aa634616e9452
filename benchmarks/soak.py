"""A thousand concurrent streams for minutes, one in ten with a fault: does memory stay flat, and does anything leak?

Defines the provider's faults, the samples and the promises. The clients are in `soak_clients`, the counts inside the
gateway in `soak_gateway`.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from uvloop import new_event_loop

from benchmarks.processes import Started, started
from benchmarks.soak_clients import Crowd

FAULTS = (
    "cut:0", "cut:8", "stall:0", "stall:8", "error:0", "error:8", "malformed:0", "malformed:8",
    "truncated", "reset", "close", "silence", "headers", "status:503",
)  # fmt: skip
"""Each affects the same share of the requests."""
FAULTY_SHARE = 0.1
MODELS = ("plain", "continued")

_CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "PROVIDER/v1", api_key: mock}
  torrent: {dialect: openai, base_url: "TORRENT/v1", api_key: mock}
defaults:
  timeout: {connect: 2s, first_token: 2s, idle: 2s, attempt: 10s, total: 30s}
models:
  plain: {deployments: [{upstream: provider, model: "gpt-4o+FAULTS"}]}
  large: {deployments: [{upstream: torrent, model: gpt-4o}]}
  continued:
    deployments: [{upstream: provider, model: "gpt-4o-mini+FAULTS"}]
    fallbacks: [plain]
    stream: {recover: continue}
"""
_MOCK = ("--tokens", "20", "--token-delay-ms", "250")
_TORRENT = ("--tokens", "1500")
"""Some 400 kB at once: more than the kernel buffers for a client that does not read."""
_SAMPLE_EVERY_S = 1.0
_TELL_EVERY = 10
_BACK_WITHIN_S = 25.0
"""aiohttp keeps an idle connection to an upstream for 15 s."""
_JUDGED_FROM_S = 240.0
"""In a shorter run, memory that is allocated for the first time would look like a leak."""
_STEPS_MB = 1.25
"""Growth in the second half that the allocator may cause, since its last arenas still fill. It is 30 MB an hour in five
minutes, and 5 in thirty; one leaked object of 100 bytes with each stream makes 70.
"""
_MEANT_SHARE = 0.9
"""Flat memory of a gateway that refuses all calls proves nothing."""
_GAUGE = re.compile(r"^llm_guard_in_flight_calls\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """State of the gateway at one moment."""

    at_s: float
    """Seconds since the load began."""
    rss_bytes: int
    fds: int
    tasks: int
    calls: int
    attempts: int
    slots: int
    waiting: int
    gauge: int
    """`llm_guard_in_flight_calls`, as an operator sees it."""
    open: int = 0
    """Open streams of the clients."""

    @property
    def holds(self) -> dict[str, int]:
        """Counts that must return to their initial values after the load."""
        return {
            "tasks": self.tasks, "file descriptors": self.fds, "calls": self.calls, "attempts": self.attempts,
            "slots": self.slots, "waiting calls": self.waiting, "in-flight gauge": self.gauge,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Soak:
    """Results of a run."""

    streams: int
    minutes: float
    models: tuple[str, ...]
    before: Sample
    samples: tuple[Sample, ...]
    after: Sample
    back_after_s: float
    """Seconds from the end of the load until nothing was left, or until the wait was given up."""
    ended: dict[str, dict[str, int]]
    """Counts by the client's habit and by how its stream ended."""
    events: int
    stray: tuple[str, ...]
    """Lines that the gateway wrote to standard error."""

    @property
    def slope_mb_per_hour(self) -> float:
        """Growth of resident memory over the second half of the run."""
        return slope([(each.at_s, each.rss_bytes) for each in second_half(self.samples)]) * 3600 / 1e6

    @property
    def promised_mb_per_hour(self) -> float:
        """Maximum growth; smaller for a longer run."""
        return _STEPS_MB / (self.minutes / 2 / 60)

    @property
    def ended_count(self) -> int:
        return sum(sum(hows.values()) for hows in self.ended.values())

    @property
    def whole_share(self) -> float:
        """Share of complete streams among those of clients that read to the end."""
        read = self.ended.get("reads", {})
        return read.get("whole", 0) / max(1, sum(read.values()))

    @property
    def usually_open(self) -> float:
        """Median of concurrent streams in the second half of the run."""
        return statistics.median(each.open for each in second_half(self.samples))

    @property
    def bytes_per_stream(self) -> float:
        """The slope as bytes leaked by each stream."""
        return self.slope_mb_per_hour * 1e6 / 3600 / (self.ended_count / (self.minutes * 60))

    @property
    def left_over(self) -> dict[str, int]:
        """Counts that are higher after the load than before it."""
        before = self.before.holds
        found = {name: count - before[name] for name, count in self.after.holds.items()}
        return {name: count for name, count in found.items() if count > 0}

    @property
    def is_judged(self) -> bool:
        """True if the run was long enough for its slope to be meaningful."""
        return self.minutes * 60 >= _JUDGED_FROM_S

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        broken = [f"{count} {name} left behind" for name, count in self.left_over.items()]
        if self.is_judged and self.slope_mb_per_hour > (promised := self.promised_mb_per_hour):
            broken.append(f"memory grew by {self.slope_mb_per_hour:.0f} MB an hour against {promised:.0f}")
        for how, why in (("silent", "ended without a word"), ("hung", "never ended")):
            if count := sum(hows.get(how, 0) for hows in self.ended.values()):
                broken.append(f"{count} streams {why}")
        if self.whole_share < _MEANT_SHARE or self.usually_open < _MEANT_SHARE * self.streams:
            load = f"{self.usually_open:.0f} streams open, {self.whole_share:.0%} of the readers' whole"
            broken.append(f"the load was not as meant: {load}")
        if self.stray:
            broken.append(f"the gateway wrote {len(self.stray)} lines to standard error: {self.stray[-1]}")
        return broken

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"slope_mb_per_hour": self.slope_mb_per_hour, "left_over": self.left_over}


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The second half; the first is warm-up, in which pools, the allocator's arenas and the breakers' windows fill."""
    return samples[len(samples) // 2 :]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs of points: up to 29 % of them may be off without moving it far (Theil 1950,
    Sen 1968). 0.0 if there are fewer than two times."""
    found = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 != x1]
    return statistics.median(found) if found else 0.0


def run(say: Callable[[str], None], minutes: float, streams: int) -> Soak:
    """Starts everything, lets the clients call for `minutes`, ends the load and waits until nothing is left."""
    with (
        started("llm_guard", "mock", "--port", "0", *_MOCK) as provider,
        started("llm_guard", "mock", "--port", "0", *_TORRENT) as torrent,
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder, "soak.yaml")
        path.write_text(_config(provider.url, torrent.url))
        with (
            started("benchmarks.soak_gateway", str(path), cpu=0) as running,
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            return runner.run(_soak(running, say, minutes, streams))


def _config(url: str, torrent: str) -> str:
    faults = "+".join(f"{fault}@{FAULTY_SHARE * 100 / len(FAULTS):.2f}%" for fault in FAULTS)
    return _CONFIG.replace("PROVIDER", url).replace("TORRENT", torrent).replace("FAULTS", faults)


async def _soak(running: Started, say: Callable[[str], None], minutes: float, streams: int) -> Soak:
    crowd = Crowd(running.url, streams, MODELS, "large")
    started_at = time.monotonic()
    before = await _sample(running, crowd, started_at)
    load = asyncio.ensure_future(crowd.keep_calling())
    samples: list[Sample] = []
    while time.monotonic() < started_at + minutes * 60:
        await asyncio.sleep(started_at + (len(samples) + 1) * _SAMPLE_EVERY_S - time.monotonic())
        samples.append(await _sample(running, crowd, started_at))
        if len(samples) % _TELL_EVERY == 0:
            say(_progress(samples[-1], crowd))
    crowd.leave()
    left_at = time.monotonic()
    await load
    after = await _sample(running, crowd, started_at)
    while _is_more(after, before) and time.monotonic() < left_at + _BACK_WITHIN_S:
        await asyncio.sleep(_SAMPLE_EVERY_S)
        after = await _sample(running, crowd, started_at)
    ended: dict[str, dict[str, int]] = {}
    for (habit, how), count in sorted(crowd.ended.items()):
        ended.setdefault(habit, {})[how] = count
    back_after_s = time.monotonic() - left_at
    stray = tuple(running.stray)
    return Soak(streams, minutes, MODELS, before, tuple(samples), after, back_after_s, ended, crowd.events, stray)


def _is_more(after: Sample, before: Sample) -> bool:
    return any(count > before.holds[name] for name, count in after.holds.items())


async def _sample(running: Started, crowd: Crowd, started_at: float) -> Sample:
    counts, gauge = await asyncio.to_thread(_look, running)
    memory, fds = running.process.memory_info().rss, running.process.num_fds()
    return Sample(time.monotonic() - started_at, memory, fds, gauge=gauge, open=crowd.open, **counts)


def _look(running: Started) -> tuple[dict[str, int], int]:
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    return json.loads(running.ask()), int(sum(float(found) for found in _GAUGE.findall(page)))


def _progress(sample: Sample, crowd: Crowd) -> str:
    ended = crowd.ended.total()
    whole = sum(count for (_, how), count in crowd.ended.items() if how == "whole")
    return (
        f"soak {sample.at_s:.0f} s: {sample.open} streams open, {ended} ended ({whole / max(1, ended):.1%} whole), "
        f"RSS {sample.rss_bytes / 1e6:.1f} MB, {sample.fds} descriptors, {sample.tasks} tasks, "
        f"{sample.calls} calls (gauge {sample.gauge}), {sample.slots} slots"
    )
