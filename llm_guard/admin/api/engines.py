"""/admin/engines: state of engines, and starting, stopping and restarting them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta

from llm_guard.admin.api.parameters import unknown
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, answer
from llm_guard.admin.schemas.subsystems import EngineView
from llm_guard.clock import Clock, iso
from llm_guard.upstreams.engines.registry import Engines
from llm_guard.upstreams.engines.supervisor import EngineReport, Supervisor

_OUTPUT = 20
"""Lines of output that are shown."""


class ChangeEngine(Change):
    """The engine to change."""

    engine: Annotated[str, Meta(min_length=1, max_length=64, description="Name, as in /admin/engines.")]


class EngineApi(EndpointGroup):
    """Endpoints of engines; the engines follow the current config."""

    def __init__(self, engines: Engines, changes: Changes, clock: Clock) -> None:
        self._engines = engines
        self._changes = changes
        self._clock = clock

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/engines", "Lists self-hosted engines.", self._give, gives=list[EngineView]),
            _page("start", "Starts an engine at once.", self._start),
            _page("stop", "Stops an engine. It is not restarted automatically.", self._stop),
            _page("restart", "Stops an engine and starts it again.", self._restart),
            _page("reset", "Clears an engine's restart attempts. One that was given up is restarted.", self._reset),
        ]

    def views(self) -> list[EngineView]:
        """Returns the current state of all engines."""
        return [self._view(report) for report in self._engines.seen()]

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.views())

    async def _start(self, asked: AdminRequest) -> AdminResponse:
        return await self._change(asked, "start", Supervisor.start, "it is already running or starting")

    async def _stop(self, asked: AdminRequest) -> AdminResponse:
        return await self._change(asked, "stop", Supervisor.stop, "it is already stopped")

    async def _restart(self, asked: AdminRequest) -> AdminResponse:
        return await self._change(asked, "restart", Supervisor.restart, "it is already being restarted")

    async def _reset(self, asked: AdminRequest) -> AdminResponse:
        return await self._change(asked, "reset", Supervisor.reset, "")

    async def _change(
        self, asked: AdminRequest, action: str, act: Callable[[Supervisor], bool], idle: str
    ) -> AdminResponse:
        """Responds at once: the operation may take minutes, and its result is published as events."""
        name = asked.body.engine
        supervisor = self._engines.find(name)
        if supervisor is None:
            raise unknown(name, set(self._engines.names()), "engine")

        def do() -> ChangeResult:
            was = supervisor.seen().now.state
            has_begun = act(supervisor)
            return ChangeResult(self._view(supervisor.seen()), {"was": was}, [] if has_begun else [f"{name}: {idle}"])

        return await self._changes.make(asked, f"engines.{action}", name, do)

    def _view(self, seen: EngineReport) -> EngineView:
        config, now = seen.config, seen.now
        return EngineView(
            seen.name,
            config.kind,
            seen.place,
            list(config.upstreams),
            now.state,
            iso(self._clock.wall() - (self._clock.now() - now.since)),
            now.why or None,
            now.doing,
            now.attempts,
            config.restart.settings.max_attempts,
            now.next_attempt_s,
            now.boot_left_s,
            now.restarts_ok,
            now.restarts_failed,
            _rounded_share(now.uptime.running_s, now.uptime.wanted_s, 5),
            _rounded_share(now.uptime.starting_s, now.uptime.starts, 3),
            config.standby,
            config.provision,
            list(seen.output[-_OUTPUT:]),
        )


def _rounded_share(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole else None


def _page(path: str, summary: str, give: Callable[[AdminRequest], Awaitable[AdminResponse]]) -> Endpoint:
    return Endpoint("POST", f"/admin/engines/{path}", summary, give, takes=ChangeEngine, gives=Changed[EngineView])
