"""What the store of a fleet costs a call while it is well, and what calls notice while it fails: nothing.

Three gateways, each a process of its own, and a real redis-server, behind a relay that can hold back, delay or cut its
responses. The measured gateways have a processor for themselves.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.compare import ways
from benchmarks.compare.load import Calls, at_rate
from benchmarks.ops import TOKEN
from benchmarks.processes import Way, pin, started
from benchmarks.rig import gateway
from benchmarks.turns import cpu_s_per_call, in_turns, joined, ratio
from tests.fakes.redis_server import RedisServer, redis_server
from tests.integration.test_engines import free_port

GATEWAYS = 3
PROMISED_CPU, PROMISED_P99_S, PROMISED_COMMANDS = 1.02, 0.0001, 11.0
PROMISED_FAILING_P99_S, PROMISED_LAG_S, PROMISED_GROWTH, PROMISED_BACK_S = 0.005, 0.05, 4 * 1024**2, 1.5
ALONE, SHARED = "alone", "one of three with a store"
ROUNDS = 9
_COST_PER_S = 1000.0
_PIECES = 12
_FAILING_PER_S = 200.0
_CONNECTIONS = 32
_WARM_UP_S = 2.0
_FREEZE_S, _SHORT_S = 60.0, 15.0
_HEADERS = {"authorization": f"Bearer {TOKEN}"}

CONFIG = f"{ways.CONFIG}ops: {{token: {TOKEN}}}\n"

Fault = Literal["", "silent", "delayed", "cut"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the store costs while it is well."""

    cpu: tuple[float, float, float]
    """CPU per call of a gateway with a store, relative to one alone: median over rounds, lowest, highest."""
    added_p99_s: tuple[float, float, float]
    """The same of the difference of the 99th percentiles."""
    commands_per_s: float
    """Requests to the store, per gateway and second."""
    calls: int
    """Calls while they were counted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which the store fails."""

    name: str
    seconds: float
    calls: int
    failed: int
    p99_s: float
    lag_s: float
    """The smallest bound of a bucket that no lag of a loop exceeded."""
    growth_bytes: float
    """Resident memory that a gateway gained, of the one that gained most."""
    back_s: float
    """From its end until all gateways saw one another again."""


@dataclass(frozen=True, slots=True)
class StoreRun:
    """A finished run."""

    cost: Cost
    baseline_p99_s: float
    """Without a fleet."""
    failures: tuple[Failure, ...]

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        cost, found = self.cost, []
        if cost.cpu[0] > PROMISED_CPU:
            found.append(f"CPU per call with a store: {cost.cpu[0]:.3f} of that alone, against {PROMISED_CPU}")
        if cost.added_p99_s[0] > PROMISED_P99_S:
            found.append(f"added p99: {cost.added_p99_s[0] * 1e3:.2f} ms, against {PROMISED_P99_S * 1e3:.1f}")
        if cost.commands_per_s > PROMISED_COMMANDS:
            found.append(f"requests to the store: {cost.commands_per_s:.1f} a second, against {PROMISED_COMMANDS:.0f}")
        for one in self.failures:
            wrong = {
                f"{one.failed} calls failed": one.failed > 0,
                f"p99 {one.p99_s * 1e3:.1f} ms": one.p99_s > self.baseline_p99_s + PROMISED_FAILING_P99_S,
                f"loop lag up to {one.lag_s * 1e3:.0f} ms": one.lag_s > PROMISED_LAG_S,
                f"grew by {one.growth_bytes / 1024**2:.1f} MiB": one.growth_bytes > PROMISED_GROWTH,
                f"shared again after {one.back_s:.2f} s": one.back_s > PROMISED_BACK_S,
            }
            found += [f"{one.name}: {what}" for what, is_wrong in wrong.items() if is_wrong]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def run(say: Callable[[str], None], rounds: int = ROUNDS, seconds: float = 12.0, *, is_short: bool = False) -> StoreRun:
    """Measures both: nine minutes. Raises OSError, NotStartedError."""
    cost = _cost(say, rounds, seconds)
    short_s, freeze_s = (2.0, 3.0) if is_short else (_SHORT_S, _FREEZE_S)
    with started("benchmarks.relay_peers", "provider", "0") as provider:
        say("fleet store: without a fleet")
        with ExitStack() as stack:
            alone = [_way(stack.enter_context(gateway(CONFIG, provider.url))) for _ in range(GATEWAYS)]
            _calls(alone, _WARM_UP_S)
            baseline = _p99(_calls(alone, short_s))
        with _store() as (server, relay), ExitStack() as stack:
            config = f"{CONFIG}fleet: {{store: 'redis://127.0.0.1:{relay.port}/0'}}\n"
            shared = [_way(stack.enter_context(gateway(config, provider.url))) for _ in range(GATEWAYS)]
            _calls(shared, _WARM_UP_S)
            _until_shared(shared)
            failures = (
                _failure(say, "frozen (SIGSTOP)", shared, freeze_s, server.freeze, server.thaw),
                _failure(say, "killed (kill -9), then started again", shared, short_s, server.kill, server.start),
                _failure(say, "accepts, and never responds", shared, short_s, *relay.faults("silent")),
                _failure(say, "responds after 300 ms", shared, short_s, *relay.faults("delayed")),
                _failure(say, "cuts each response", shared, short_s, *relay.faults("cut")),
            )
    return StoreRun(cost, baseline, failures)


def _cost(say: Callable[[str], None], rounds: int, seconds: float) -> Cost:
    found: dict[str, list[Calls]] = {ALONE: [], SHARED: []}
    commands = spent_s = calls = 0.0
    for turn in range(rounds):
        say(f"fleet store: round {turn + 1}/{rounds}")
        with (
            started("benchmarks.relay_peers", "provider", "0") as provider,
            tempfile.TemporaryDirectory() as folder,
            redis_server(Path(folder)) as server,
            ExitStack() as stack,
        ):
            config = f"{CONFIG}fleet: {{store: '{server.url}'}}\n"
            measured = {
                name: _way(stack.enter_context(gateway(text, provider.url)))
                for name, text in ((ALONE, CONFIG), (SHARED, config))
            }
            for _ in range(1, GATEWAYS):  # on the load's processor: on that of the measured one they would delay it
                pin(stack.enter_context(gateway(config, provider.url)).process.pid, 1)
            for way in measured.values():
                at_rate(way, _CONNECTIONS, _COST_PER_S, _WARM_UP_S)
            began_at, before = time.monotonic(), _requests(server)
            pieces: dict[str, list[Calls]] = {ALONE: [], SHARED: []}
            for _, name in in_turns((ALONE, SHARED), _PIECES):
                pieces[name].append(at_rate(measured[name], _CONNECTIONS, _COST_PER_S, seconds / _PIECES))
            commands += _requests(server) - before
            spent_s += time.monotonic() - began_at
            for name, done in pieces.items():
                found[name].append(joined(done))
            calls += len(found[SHARED][-1].latencies_s)
    added = [_p99([shared]) - _p99([alone]) for shared, alone in zip(found[SHARED], found[ALONE], strict=True)]
    return Cost(
        ratio(cpu_s_per_call(found), SHARED, ALONE),
        (statistics.median(added), min(added), max(added)),
        commands / spent_s / GATEWAYS,
        int(calls),
    )


def _requests(server: RedisServer) -> int:
    """Returns the scripts that gateways have called. Commands that a script calls are no requests."""
    with server.client() as client:
        stats: Mapping[str, Mapping[str, int]] = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


def _way(running: Any) -> Way:
    return Way("gateway", running.url, running.process)


def _calls(ways_: Sequence[Way], seconds: float) -> list[Calls]:
    """Calls all of them at the same time."""
    with ThreadPoolExecutor(len(ways_)) as threads:
        per_s = _FAILING_PER_S / len(ways_)
        return list(threads.map(lambda way: at_rate(way, _CONNECTIONS, per_s, seconds), ways_))


def _p99(found: Sequence[Calls]) -> float:
    latencies = sorted(latency for calls in found for latency in calls.latencies_s)
    return latencies[min(len(latencies) - 1, round(0.99 * len(latencies)))]


def _failure(
    say: Callable[[str], None], name: str, gateways: Sequence[Way], seconds: float,
    break_it: Callable[[], None], mend_it: Callable[[], None],
) -> Failure:  # fmt: skip
    say(f"fleet store: {name}, {seconds:.0f} s")
    lags, sizes = [_lags(way) for way in gateways], [way.rss_bytes() for way in gateways]
    break_it()
    calls = _calls(gateways, seconds)
    growth = max(way.rss_bytes() - size for way, size in zip(gateways, sizes, strict=True))
    lag_s = max(_worst(before, _lags(way)) for way, before in zip(gateways, lags, strict=True))
    mend_it()
    back_s = _until_shared(gateways)
    ok, failed = sum(len(one.latencies_s) for one in calls), sum(one.failed for one in calls)
    return Failure(name, seconds, ok + failed, failed, _p99(calls), lag_s, growth, back_s)


def _until_shared(gateways: Sequence[Way]) -> float:
    """Returns the seconds until each gateway sees all of them; at most ten."""
    began_at = time.monotonic()
    while (passed_s := time.monotonic() - began_at) < 10.0:
        seen = [json.loads(_read(f"{way.url}/admin/replicas")) for way in gateways]
        if all(one["is_connected"] and len(one["replicas"]) == len(gateways) for one in seen):
            break
        time.sleep(0.02)
    return passed_s


def _lags(way: Way) -> dict[float, int]:
    """Returns the counts of the histogram of the loop's lag, by the bound of the bucket."""
    found = re.findall(r'llm_guard_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\d+)', _read(f"{way.url}/metrics"))
    return {float(bound): int(count) for bound, count in found}


def _worst(before: Mapping[float, int], after: Mapping[float, int]) -> float:
    """Returns the smallest bound that no lag between both exceeded."""
    new = {bound: after[bound] - before[bound] for bound in after}
    return min(bound for bound, count in new.items() if count == new[max(new)])


def _read(url: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=_HEADERS), timeout=5) as response:  # our own
        return str(response.read().decode())


class Relay:
    """Passes bytes on between gateways and a server, in a thread of its own; `fault` says how badly."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.fault: Fault = ""
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._is_up.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def faults(self, fault: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        """Returns what begins and what ends a fault."""
        return lambda: setattr(self, "fault", fault), lambda: setattr(self, "fault", "")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(
                self._pump(reader, ours, is_response=False), self._pump(theirs, writer, is_response=True)
            )
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_response: bool) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if self.fault == "silent":
                    continue
                if self.fault == "delayed" and is_response:
                    await asyncio.sleep(0.3)
                if self.fault == "cut" and is_response:
                    sink.write(data[: len(data) // 2])
                    break
                sink.write(data)
                await sink.drain()
        sink.close()


@contextmanager
def _store() -> Iterator[tuple[RedisServer, Relay]]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder), "--port", str(port)) as server:
        relay = Relay(port)
        relay.start()
        try:
            yield server, relay
        finally:
            relay.stop()
