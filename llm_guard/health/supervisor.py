"""Looks after one engine: what it is told, what is heard of it, and what is done when it is down.

Owns the order in which things are done to it, one at a time. Does not own what is to be done (`policy.engine`), nor how
(`health.strategy`).
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
from llm_guard.health.signs import Hear, ProbeView
from llm_guard.health.strategy import EngineError, Strategy
from llm_guard.policy.engine import Engine, EngineSnapshot, Order, Turn

_log = structlog.get_logger("llm_guard.health.supervisor")

_BOOT_LOOK_S = 0.5
"""From one look to the next while it comes up; the prober's own interval may be long."""
_GOOD = ("ok", "answered")


class Probing(Protocol):
    """What is asked of the prober."""

    def subscribe(self, upstream: str, hear: Hear) -> Callable[[], None]:
        """`hear` hears of each look from now on. Returns how to end that."""

    def look_now(self, upstream: str) -> None:
        """As soon as it can."""

    def set_failed(self, upstream: str, why: str | None) -> None:
        """Its engine was given up; None: it was not, or is no longer."""


Tell = Callable[[str, Turn], None]
"""Hears what has happened to which engine, at once; must neither block nor raise."""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One engine, as it is now."""

    name: str
    config: EngineConfig
    place: str
    now: EngineSnapshot
    output: tuple[str, ...]
    """The last lines that it has printed."""


class Supervisor:
    """Of one engine: `begin`, then `await end`."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        make: Callable[[EngineConfig], Strategy],
        probing: Probing,
        tell: Tell,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        self.name = name
        self.config = config
        self._make = make
        self._strategy = make(config)
        self._next: Strategy | None = None
        """It takes the place of the other as soon as that is stopped."""
        self._probing = probing
        self._tell = tell
        self._clock = clock
        self._draw = draw
        self._machine = Engine(config.restart.settings, config.boot, clock.now())
        self._run_known = ""
        """Which run of it we have started, or waited for."""
        self._good_at: dict[str, float | None] = {}
        """When the last look at each of its upstreams began; None: that went wrong, or there was none."""
        self._unsubscribe: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    def begin(self, *, is_wanted: bool) -> None:
        """From now on it is looked after; one that is not wanted, or a spare one, is not started."""
        self._listen()
        if is_wanted and not self.config.spare:
            self._note(self._machine.start(self._clock.now()))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def adopt(self, config: EngineConfig) -> None:
        """What runs goes on under other rules; where it is run in another way, it is stopped the old way and started
        the new. One that is spare no more is started."""
        is_another = (config.kind, config.way) != (self.config.kind, self.config.way)
        has_moved = config.upstreams != self.config.upstreams
        is_spare_no_more = self.config.spare and not config.spare
        self.config = config
        self._machine.settings, self._machine.boot_s = config.restart.settings, config.boot
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
        """What is ours ends with us, after its time of grace; what is not goes on. A second one ends it at once."""
        grace_s = self.config.grace if self._task is not None else 0.0
        task, self._task = self._task, None
        self._stop_watching()
        self._leave()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._strategy.close(grace_s)

    def farewell(self) -> Turn:
        """For those who watch it: it is looked after no more."""
        state = self._machine.state
        return Turn("stop", state, "stopped", "it is no longer in the config", 0)

    @property
    def is_stopped(self) -> bool:
        """By somebody's word: it is not spare."""
        return self._machine.state == "stopped" and not self.config.spare

    # what operators say: whether there was anything to be done

    def start(self) -> bool:
        return self._note(self._machine.start(self._clock.now()))

    def stop(self) -> bool:
        return self._note(self._machine.stop(self._clock.now()))

    def restart(self) -> bool:
        return self._note(self._machine.restart(self._clock.now()))

    def reset(self) -> bool:
        return self._note(self._machine.reset(self._clock.now()))

    def seen(self) -> EngineSeen:
        snapshot = self._machine.snapshot(self._clock.now())
        return EngineSeen(self.name, self.config, self._strategy.place, snapshot, self._strategy.output)

    # one thing after the other

    async def _run(self) -> None:
        while True:
            order = self._machine.take()
            if order is not None:
                await self._carry_out(order)
            elif not self._note(self._machine.pass_time(self._clock.now(), self._draw())):
                await self._rest()

    async def _rest(self) -> None:
        """Until something is due, or has happened."""
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

    async def _carry_out(self, order: Order) -> None:
        problem = None
        try:
            await self._do(order)
        except EngineError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # whoever looks after engines must not end with one
            _log.exception("an engine could not be cared for", engine=self.name)
            problem = f"{type(error).__name__}: {error}"
        self._note(self._machine.finish(problem, self._clock.now(), self._draw()))
        if order != "stop" and problem is None:
            self._watch_it()
        self._look_now()

    async def _do(self, order: Order) -> None:
        if order == "revive" and await self._has_been_revived():
            return
        if order != "start":
            self._stop_watching()
            await self._end_run(is_for_good=order == "stop")
        if self._next is not None:
            self._strategy, self._next, self._run_known = self._next, None, ""
        if order != "stop":
            await self._strategy.start()
            self._run_known = await self._current_run()

    async def _end_run(self, *, is_for_good: bool) -> None:
        try:
            await self._strategy.stop(self.config.grace)
        except EngineError as error:
            if self._next is None or is_for_good:
                raise
            # Where the old way is out of order, the new one is often why the config was changed.
            _log.error("an engine stays behind", engine=self.name, place=self._strategy.place, problem=str(error))

    async def _has_been_revived(self) -> bool:
        """By another gateway, or by its own daemon: to stop it while it comes up would help nobody."""
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

    # what is heard

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
        self._look_now()  # so that calls go elsewhere

    def _hear(self, upstream: str, view: ProbeView) -> None:
        now = self._clock.now()
        if view.state == "down":
            self._note(self._machine.note_down(f"{upstream}: {view.why}", now, self._draw()))
        is_good = view.state == "up" and view.last in _GOOD
        self._good_at[upstream] = now - (view.took_s or 0.0) if is_good else None
        looks = self._good_at.values()
        if all(each is not None for each in looks):
            self._note(self._machine.note_up(min(each for each in looks if each is not None), now))

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
            self._probing.look_now(name)

    # what is told

    def _note(self, turn: Turn | None) -> bool:
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
