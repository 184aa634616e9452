"""All engines of the config, each looked after by itself.

Owns which there are, over reloads, and that none of ours is left behind. Does not own the care of one
(`health.supervisor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from llm_guard.clock import Clock
from llm_guard.config import CommandConfig, ContainerConfig, EngineConfig, UnitConfig
from llm_guard.health.command_engine import CommandEngine
from llm_guard.health.docker_engine import ContainerEngine
from llm_guard.health.strategy import Strategy
from llm_guard.health.supervisor import EngineSeen, Probing, Supervisor, Tell
from llm_guard.health.systemd_engine import UnitEngine
from llm_guard.policy.engine import Turn


class Engines:
    """`start` when the prober runs, `adopt` at a reload, `await stop`. Of one event loop."""

    def __init__(
        self,
        probing: Probing,
        clock: Clock,
        draw: Callable[[], float],
        make: Callable[[EngineConfig, Clock], Strategy] | None = None,
    ) -> None:
        """`make`: by whom an engine is started and stopped."""
        self.tell: Tell = _nobody
        """Who hears of all that happens; set once."""
        self._probing = probing
        self._clock = clock
        self._draw = draw
        self._make = make or strategy_of
        self._supervisors: dict[str, Supervisor] = {}
        self._stopped: list[str] = []
        """As far as it was known before there were supervisors, or after."""
        self._ending: dict[asyncio.Task[None], Supervisor] = {}
        """Those whose care ends, also by a reload."""

    def adopt(self, configs: Mapping[str, EngineConfig]) -> None:
        """Looks after these: new ones are started, unless they are spare or were stopped before a restart; the care of
        those that are gone ends, and so do they if they are ours."""
        stopped = self.stopped()
        for name in self._supervisors.keys() - configs.keys():
            gone = self._supervisors.pop(name)
            self.tell(name, gone.farewell())
            self._dismiss(gone)
        for name, config in configs.items():
            known = self._supervisors.get(name)
            if known is None:
                self._supervisors[name] = self._new(name, config)
                self._supervisors[name].begin(is_wanted=name not in stopped)
            elif known.config != config:
                known.adopt(config)
        self._supervisors = {name: self._supervisors[name] for name in configs}
        self._stopped = []

    def recall(self, stopped: Iterable[str]) -> None:
        """These were stopped by somebody before the gateway was started again. Before the first `adopt`."""
        self._stopped = list(stopped)

    def stopped(self) -> list[str]:
        """Those that somebody has stopped; once the gateway ends, those of that moment."""
        if not self._supervisors:
            return self._stopped
        return [name for name, each in self._supervisors.items() if each.is_stopped]

    async def stop(self, hurry: asyncio.Event) -> None:
        """Ends the care of all, and those that are ours; once `hurry` is set, without their time of grace."""
        self._stopped = self.stopped()
        for each in self._supervisors.values():
            self._dismiss(each)
        self._supervisors = {}
        if not self._ending:
            return
        hurried = asyncio.ensure_future(hurry.wait())
        ended = asyncio.ensure_future(asyncio.wait(self._ending))
        await asyncio.wait((hurried, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await asyncio.gather(*(each.end() for each in self._ending.values()))
        hurried.cancel()
        await ended

    def seen(self) -> list[EngineSeen]:
        """In the order of the config."""
        return [each.seen() for each in self._supervisors.values()]

    def find(self, name: str) -> Supervisor | None:
        """The one who looks after it."""
        return self._supervisors.get(name)

    def names(self) -> Iterable[str]:
        return self._supervisors.keys()

    def _new(self, name: str, config: EngineConfig) -> Supervisor:
        return Supervisor(name, config, self._made, self._probing, self._told, self._clock, self._draw)

    def _made(self, config: EngineConfig) -> Strategy:
        return self._make(config, self._clock)

    def _told(self, name: str, turn: Turn) -> None:
        self.tell(name, turn)

    def _dismiss(self, supervisor: Supervisor) -> None:
        task = asyncio.get_running_loop().create_task(supervisor.end())
        self._ending[task] = supervisor
        task.add_done_callback(self._ending.pop)


def strategy_of(config: EngineConfig, clock: Clock) -> Strategy:
    """As the config says."""
    match config.way:
        case CommandConfig() as way:
            return CommandEngine(way, clock)
        case ContainerConfig() as way:
            return ContainerEngine(way, "docker" if config.kind == "docker" else "podman", clock)
        case UnitConfig() as way:
            return UnitEngine(way, clock)


def _nobody(_engine: str, _turn: Turn) -> None:
    """Nobody hears."""
