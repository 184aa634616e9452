"""All engines of the config, each with its own supervisor.

Creates and ends supervisors across reloads, and leaves none of the gateway's own processes behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from llm_guard.clock import Clock
from llm_guard.config import CommandConfig, ContainerConfig, EngineConfig, UnitConfig
from llm_guard.upstreams.engines.docker_driver import ContainerDriver
from llm_guard.upstreams.engines.driver import EngineDriver
from llm_guard.upstreams.engines.process_driver import ProcessDriver
from llm_guard.upstreams.engines.supervisor import EngineListener, EngineProber, EngineReport, Supervisor
from llm_guard.upstreams.engines.systemd_driver import SystemdDriver


class Engines:
    """Supervises all engines. Call `adopt` once the prober runs and at each reload, and `await stop()` at the end.
    Belongs to one event loop."""

    def __init__(
        self,
        probing: EngineProber,
        clock: Clock,
        draw: Callable[[], float],
        tell: EngineListener,
        make: Callable[[EngineConfig, Clock], EngineDriver] | None = None,
    ) -> None:
        """`tell` is called with each state change of an engine; `make` creates what starts and stops one, by default
        `strategy_of`."""
        self._tell = tell
        self._probing = probing
        self._clock = clock
        self._draw = draw
        self._make = make or strategy_of
        self._supervisors: dict[str, Supervisor] = {}
        self._stopped: list[str] = []
        """Engines stopped by an operator, as known before the first `adopt` or after `stop`."""
        self._ending: dict[asyncio.Task[None], Supervisor] = {}
        """Supervisors that are ending, also because of a reload."""

    def adopt(self, configs: Mapping[str, EngineConfig]) -> None:
        """Supervises exactly these engines. New ones are started, unless they are standby or were stopped
        before a restart. Supervision of removed ones ends, and with it the processes that belong to the gateway."""
        stopped = self.stopped()
        for name in self._supervisors.keys() - configs.keys():
            gone = self._supervisors.pop(name)
            self._tell(name, gone.removal_event())
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
        """Restores the engines that an operator had stopped before the gateway restarted. Call before the first
        `adopt`."""
        self._stopped = list(stopped)

    def stopped(self) -> list[str]:
        """Engines that an operator has stopped; after `stop`, those stopped at that moment."""
        if not self._supervisors:
            return self._stopped
        return [name for name, supervisor in self._supervisors.items() if supervisor.is_stopped]

    async def stop(self, hurry: asyncio.Event) -> None:
        """Ends all supervision and the gateway's own processes; without their stop timeout once `hurry` is set."""
        self._stopped = self.stopped()
        for supervisor in self._supervisors.values():
            self._dismiss(supervisor)
        self._supervisors = {}
        if not self._ending:
            return
        hurried = asyncio.ensure_future(hurry.wait())
        ended = asyncio.ensure_future(asyncio.wait(self._ending))
        await asyncio.wait((hurried, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await asyncio.gather(*(supervisor.end() for supervisor in self._ending.values()))
        hurried.cancel()
        await ended

    def seen(self) -> list[EngineReport]:
        """All engines, in the order of the config."""
        return [supervisor.seen() for supervisor in self._supervisors.values()]

    def find(self, name: str) -> Supervisor | None:
        """Supervisor of an engine; None: no such engine."""
        return self._supervisors.get(name)

    def names(self) -> Iterable[str]:
        return self._supervisors.keys()

    def _new(self, name: str, config: EngineConfig) -> Supervisor:
        return Supervisor(name, config, self._made, self._probing, self._tell, self._clock, self._draw)

    def _made(self, config: EngineConfig) -> EngineDriver:
        return self._make(config, self._clock)

    def _dismiss(self, supervisor: Supervisor) -> None:
        task = asyncio.get_running_loop().create_task(supervisor.end())
        self._ending[task] = supervisor
        task.add_done_callback(self._ending.pop)


def strategy_of(config: EngineConfig, clock: Clock) -> EngineDriver:
    """Returns the implementation for the engine's kind."""
    match config.way:
        case CommandConfig() as way:
            return ProcessDriver(way, clock)
        case ContainerConfig() as way:
            return ContainerDriver(way, "docker" if config.kind == "docker" else "podman", clock)
        case UnitConfig() as way:
            return SystemdDriver(way, clock)
