"""Supervises one engine: applies operator commands and probe results, and restarts it when it is down.

Runs one operation at a time. `resilience.health.engine_state` decides which, and `upstreams.engines.driver` carries it
out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from llm_guard.clock import Clock
from llm_guard.config import EngineConfig
from llm_guard.resilience.health.engine_state import Engine, EngineCommand, EngineEvent, EngineSnapshot
from llm_guard.upstreams.engines.driver import EngineDriver, EngineError
from llm_guard.upstreams.probes.targets import ProbeListener, ProbeView

_log = structlog.get_logger("llm_guard.upstreams.engines.supervisor")

_BOOT_LOOK_S = 0.5
"""Interval between probes while the engine starts; the prober's own interval may be long."""
_GOOD = ("ok", "answered")


class EngineProber(Protocol):
    """The part of the prober that a supervisor uses."""

    def subscribe(self, upstream: str, hear: ProbeListener) -> Callable[[], None]:
        """Calls `hear` after each probe from now on. Returns a function that unsubscribes."""

    def probe_now(self, upstream: str) -> None:
        """Probes this upstream as soon as possible."""

    def set_failed(self, upstream: str, why: str | None) -> None:
        """Sets why the upstream's engine was given up; None: it is not given up."""


EngineListener = Callable[[str, EngineEvent], None]
"""Called synchronously with an engine's name and its state change; must neither block nor raise."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Current state of one engine."""

    name: str
    config: EngineConfig
    place: str
    now: EngineSnapshot
    output: tuple[str, ...]
    """The last lines of its output; while it runs, those of a container or a unit are about 5 s old."""


class Supervisor:
    """Supervises one engine: call `begin`, then `await end()`."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        make: Callable[[EngineConfig], EngineDriver],
        probing: EngineProber,
        tell: EngineListener,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        self.name = name
        self.config = config
        self._make = make
        self._strategy = make(config)
        self._next: EngineDriver | None = None
        """Replaces `_strategy` as soon as the engine has been stopped."""
        self._probing = probing
        self._tell = tell
        self._clock = clock
        self._draw = draw
        self._machine = Engine(config.restart.settings, config.start_timeout, clock.now())
        self._run_known = ""
        """Run that this supervisor has started or found after a start."""
        self._good_at: dict[str, float | None] = {}
        """Start time of each upstream's last probe; None: that probe failed, or there was none."""
        self._unsubscribe: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    def begin(self, *, is_wanted: bool) -> None:
        """Starts supervision. The engine itself is started only if it is wanted and not standby."""
        self._listen()
        if is_wanted and not self.config.standby:
            self._note(self._machine.start(self._clock.now()))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def adopt(self, config: EngineConfig) -> None:
        """Applies a new config. A running engine keeps running; if it is to run in another way, it is stopped the old
        way and started the new way. One that is no longer standby is started."""
        is_another = (config.kind, config.way) != (self.config.kind, self.config.way)
        has_moved = config.upstreams != self.config.upstreams
        is_spare_no_more = self.config.standby and not config.standby
        self.config = config
        self._machine.settings, self._machine.boot_s = config.restart.settings, config.start_timeout
        if has_moved:
            self._leave()
            self._listen()
        if is_another:
            self._next = self._make(config)
            if self._machine.state != "stopped":
                self._note(self._machine.replace(self._clock.now()))
        if is_spare_no_more:
            self._note(self._machine.start(self._clock.now()))
        self._wake.set()

    async def end(self) -> None:
        """Ends supervision. A child process of the gateway is stopped within `stop_timeout`; other engines keep
        running. A second call stops it at once."""
        grace_s = self.config.stop_timeout if self._task is not None else 0.0
        task, self._task = self._task, None
        self._stop_watching()
        self._leave()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._strategy.close(grace_s)

    def removal_event(self) -> EngineEvent:
        """Last state change to publish, when the engine has been removed from the config."""
        state = self._machine.state
        return EngineEvent("stop", state, "stopped", "it is no longer in the config", 0)

    @property
    def is_stopped(self) -> bool:
        """True if an operator has stopped it; False for a standby engine that was never started."""
        return self._machine.state == "stopped" and not self.config.standby

    # operator commands; each returns False if there was nothing to do

    def start(self) -> bool:
        return self._note(self._machine.start(self._clock.now()))

    def stop(self) -> bool:
        return self._note(self._machine.stop(self._clock.now()))

    def restart(self) -> bool:
        return self._note(self._machine.restart(self._clock.now()))

    def reset(self) -> bool:
        return self._note(self._machine.reset(self._clock.now()))

    def seen(self) -> EngineReport:
        snapshot = self._machine.snapshot(self._clock.now())
        return EngineReport(self.name, self.config, self._strategy.place, snapshot, self._strategy.output)

    # the loop that runs one operation at a time

    async def _run(self) -> None:
        while True:
            order = self._machine.take()
            if order is not None:
                await self._carry_out(order)
            elif not self._note(self._machine.pass_time(self._clock.now(), self._draw())):
                await self._rest()

    async def _rest(self) -> None:
        """Waits until a timer expires or something happens."""
        at = self._machine.wakes_at
        if at is not None and self._machine.is_booting:
            self._look_now()
            at = min(at, self._clock.now() + _BOOT_LOOK_S)
        alarm = None if at is None else self._clock.call_at(at, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._wake.clear()

    async def _carry_out(self, order: EngineCommand) -> None:
        problem = None
        try:
            await self._do(order)
        except EngineError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # supervision must survive any error
            _log.exception("unexpected error in the supervision of an engine", engine=self.name)
            problem = f"{type(error).__name__}: {error}"
        self._note(self._machine.finish(problem, self._clock.now(), self._draw()))
        if order != "stop" and problem is None:
            self._watch_it()
        self._look_now()

    async def _do(self, order: EngineCommand) -> None:
        if order == "revive" and await self._has_been_revived():
            return
        if order != "start":
            self._stop_watching()
            await self._end_run(is_for_good=order == "stop")
            await self._strategy.read_output()
        if self._next is not None:
            self._strategy, self._next, self._run_known = self._next, None, ""
        if order != "stop":
            await self._strategy.start()
            self._run_known = await self._current_run()

    async def _end_run(self, *, is_for_good: bool) -> None:
        try:
            await self._strategy.stop(self.config.stop_timeout)
        except EngineError as error:
            if self._next is None or is_for_good:
                raise
            # The config is often changed because the old way no longer works, so its failure must not block the new
            # one.
            _log.error("an engine could not be stopped", engine=self.name, place=self._strategy.place, error=str(error))

    async def _has_been_revived(self) -> bool:
        """True if another gateway or the engine's own daemon has restarted it: stopping it during startup would only
        prolong the outage."""
        run = await self._current_run()
        if not run or not self._run_known or run == self._run_known:
            return False
        self._run_known = run
        return True

    async def _current_run(self) -> str:
        try:
            return (await self._strategy.look()).run
        except EngineError:
            return ""

    # events

    def _watch_it(self) -> None:
        self._stop_watching()
        self._watch = asyncio.get_running_loop().create_task(self._wait_gone())

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _wait_gone(self) -> None:
        why = await self._strategy.wait_gone()
        self._note(self._machine.note_gone(why, self._clock.now(), self._draw()))
        self._look_now()  # so that calls go to other upstreams soon

    def _hear(self, upstream: str, view: ProbeView) -> None:
        now = self._clock.now()
        if view.state == "down":
            self._note(self._machine.note_down(f"{upstream}: {view.why}", now, self._draw()))
        is_good = view.state == "up" and view.last in _GOOD
        self._good_at[upstream] = now - (view.took_s or 0.0) if is_good else None
        looks = self._good_at.values()
        if all(look is not None for look in looks):
            self._note(self._machine.note_up(min(look for look in looks if look is not None), now))

    def _listen(self) -> None:
        self._good_at = dict.fromkeys(self.config.upstreams)
        self._unsubscribe = [self._probing.subscribe(name, partial(self._hear, name)) for name in self.config.upstreams]
        self._tell_probing()

    def _leave(self) -> None:
        for end in self._unsubscribe:
            end()
        self._unsubscribe = []
        for name in self._good_at:
            self._probing.set_failed(name, None)

    def _look_now(self) -> None:
        for name in self.config.upstreams:
            self._probing.probe_now(name)

    # notifications

    def _note(self, turn: EngineEvent | None) -> bool:
        if turn is None:
            return False
        say = _log.info if turn.after in ("starting", "running") else _log.warning
        say(
            "engine", engine=self.name, what=turn.what, before=turn.before, after=turn.after, why=turn.why,
            attempt=turn.attempt,
        )  # fmt: skip
        self._tell_probing()
        self._tell(self.name, turn)
        self._wake.set()
        return True

    def _tell_probing(self) -> None:
        seen = self._machine.snapshot(self._clock.now())
        for name in self.config.upstreams:
            self._probing.set_failed(name, seen.why if seen.state == "failed" else None)
