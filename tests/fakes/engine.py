"""A scripted engine, and a prober with results set by the test.

They implement `EngineDriver` of `llm_guard.upstreams.engines.driver` and `EngineProber` of
`llm_guard.upstreams.engines.supervisor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_guard.upstreams.engines.driver import DriverStatus, EngineError
from llm_guard.upstreams.probes.targets import ProbeListener, ProbeView


class FakeEngine:
    """Raises `problems` one by one, each on the next call of any method; `gate` holds up every stop."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.run = 0
        """Number of starts; 0 means never started."""
        self.is_running = False
        self.is_closed = False
        self.problems: list[str] = []
        self.gate: asyncio.Event | None = None
        self.place = "a fake"
        self.output: tuple[str, ...] = ("hello",)
        self._gone = asyncio.Event()
        self._why = ""

    async def look(self) -> DriverStatus:
        return DriverStatus(self.is_running, str(self.run) if self.is_running else "")

    async def start(self) -> None:
        self._do("start")
        self.begin()

    async def stop(self, grace_s: float) -> None:
        self._do(f"stop {grace_s:g}")
        if self.gate is not None:
            await self.gate.wait()
        self.is_running = False

    async def read_output(self) -> None:
        self.output = (f"after {self.done[-1]}",)

    async def wait_gone(self) -> str:
        await self._gone.wait()
        return self._why

    async def close(self, grace_s: float) -> None:
        self.done.append(f"close {grace_s:g}")
        self.is_closed = True
        if grace_s and self.gate is not None:
            await self.gate.wait()

    def begin(self) -> None:
        """Marks it as running, also when the supervisor did not start it."""
        self.run += 1
        self.is_running = True
        self._gone.clear()

    def die(self, why: str = "it ended") -> None:
        self.is_running = False
        self._why = why
        self._gone.set()

    def _do(self, what: str) -> None:
        self.done.append(what)
        if self.problems:
            raise EngineError(self.problems.pop(0))


class FakeProbing:
    """Reports the probe results that a test sets."""

    def __init__(self) -> None:
        self.hearers: dict[str, list[ProbeListener]] = {}
        self.asked: list[str] = []
        """Upstreams for which an immediate probe was requested."""
        self.failed: dict[str, str] = {}

    def subscribe(self, upstream: str, hear: ProbeListener) -> Callable[[], None]:
        hearers = self.hearers.setdefault(upstream, [])
        hearers.append(hear)
        return lambda: hearers.remove(hear)

    def probe_now(self, upstream: str) -> None:
        self.asked.append(upstream)

    def set_failed(self, upstream: str, why: str | None) -> None:
        if why is None:
            self.failed.pop(upstream, None)
        else:
            self.failed[upstream] = why

    def up(self, upstream: str = "local", took_s: float = 0.0) -> None:
        """Reports a successful probe that has just ended."""
        self._tell(ProbeView(upstream, "up", took_s=took_s, last="ok"))

    def down(self, upstream: str = "local", why: str = "status 503") -> None:
        """Reports three failed probes in a row."""
        self._tell(ProbeView(upstream, "down", why, failures=3, last="failed"))

    def slip(self, upstream: str = "local") -> None:
        """Reports one failed probe, after which the upstream still counts as up."""
        self._tell(ProbeView(upstream, "up", "status 503", failures=1, took_s=0.0, last="failed"))

    def _tell(self, view: ProbeView) -> None:
        for hear in tuple(self.hearers.get(view.upstream, ())):
            hear(view)
