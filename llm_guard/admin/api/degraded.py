"""/admin/degraded: degraded modes, and operator overrides of them: enter, exit, or back to the rule.

`proxy.degraded_mode` applies the modes, `resilience.degradation.degraded_mode` has the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, field

from llm_guard.admin.api.parameters import Duration, check_known, optional_seconds_of
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.admin.schemas.subsystems import DegradedView, ModeView, RouteModeView
from llm_guard.clock import iso
from llm_guard.config import Config
from llm_guard.proxy.degraded_mode import Modes, RouteMode, rules_of
from llm_guard.proxy.telemetry.recorder import ModelCounts

_GATEWAY = "gateway"
_NO_RULES = "no effect: no model has `degraded` in its rules"

ModelName = Annotated[str, Meta(min_length=1, max_length=600, description="A key of `models`; null: the gateway.")]


class ModeOf(Change):
    """The model to change."""

    model: ModelName | None = None


class SetMode(ModeOf):
    """The model to change, and for how long."""

    for_: Duration | None = field(name="for", default=None)
    """Duration; null: until it is reset."""


@dataclass(frozen=True, slots=True)
class ModeOverride:
    """An operator's override of a degraded mode."""

    is_degraded: bool
    reason: str
    who: str
    since: float
    """Seconds since the epoch."""
    until: float | None
    """Monotonic instant at which it ends by itself."""


class DegradedApi(EndpointGroup):
    """Endpoints of degraded modes, under the current config; a reload replaces it."""

    def __init__(self, config: Config, running: AdminContext, changes: Changes) -> None:
        self._running = running
        self._degraded = running.gateway.degraded
        self._changes = changes
        self._clock = running.clock
        self._config = config
        self._overrides: dict[str | None, ModeOverride] = {}
        """Overrides by model; None: of the whole gateway."""

    def pages(self) -> list[Endpoint]:
        path, gives = "/admin/degraded", Changed[DegradedView]
        return [
            Endpoint("GET", path, "Shows which models are degraded, and why.", self._give, gives=DegradedView),
            Endpoint(
                "POST", f"{path}/enter", "Enters degraded mode, regardless of the rule.", self._enter, takes=SetMode,
                gives=gives,
            ),
            Endpoint(
                "POST", f"{path}/exit", "Exits degraded mode, regardless of the rule.", self._exit,
                takes=SetMode, gives=gives,
            ),
            Endpoint("POST", f"{path}/auto", "Removes the operator override.", self._auto, takes=ModeOf, gives=gives),
        ]  # fmt: skip

    def look(self, now: float) -> None:
        """Ends expired overrides, and evaluates the rule."""
        for model, override in list(self._overrides.items()):
            if override.until is not None and now >= override.until:
                self._expire(model, "expiry", "the override expired")
        self._degraded.look(now)

    def adopt(self, config: Config) -> None:
        """Applies a new config. Must be called before the gateway adopts it."""
        self._config = config
        for model in [name for name in self._overrides if name is not None and name not in rules_of(config)]:
            self._expire(model, "reload", "the new config has no `degraded` rules for it")

    def overrides(self) -> list[tuple[str | None, ModeOverride]]:
        """Returns all overrides by model; None: of the whole gateway."""
        return list(self._overrides.items())

    def recall(self, overrides: Iterable[tuple[str | None, ModeOverride]]) -> None:
        """Restores the overrides of an earlier process. Those that have ended or no longer apply are noted in the audit
        trail."""
        for model, override in overrides:
            self.put(model, override)
        self.adopt(self._config)
        self.look(self._clock.now())

    def knows(self, model: str | None) -> bool:
        """Returns whether the model has rules; None: the whole gateway."""
        return model is None or model in rules_of(self._config)

    def put(self, model: str | None, override: ModeOverride) -> None:
        """Puts an override into effect; `model` None: of the whole gateway."""
        self._overrides[model] = override
        self._degraded.say(model, override.is_degraded, override.reason)

    def end(self, model: str | None, why: str) -> ModeOverride | None:
        """Ends an override and returns it, None if there was none."""
        self._degraded.say(model, None, why)
        return self._overrides.pop(model, None)

    def view(self) -> DegradedView:
        """Returns the current modes."""
        modes, counts = self._degraded.snapshot(), self._running.counters.models
        routes = [self._route_view(alias, mode, modes, counts.get(alias)) for alias, mode in modes.routes.items()]
        return DegradedView(self._gateway_view(modes), routes)

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.view())

    async def _enter(self, asked: AdminRequest) -> AdminResponse:
        return await self._set(asked, "degraded.enter", is_degraded=True)

    async def _exit(self, asked: AdminRequest) -> AdminResponse:
        return await self._set(asked, "degraded.exit", is_degraded=False)

    async def _set(self, asked: AdminRequest, action: str, *, is_degraded: bool) -> AdminResponse:
        body: SetMode = asked.body
        self._check(body.model)
        seconds = optional_seconds_of(body.for_)

        def do() -> ChangeResult:
            until = None if seconds is None else self._clock.now() + seconds
            self.put(body.model, ModeOverride(is_degraded, body.reason, asked.who, self._clock.wall(), until))
            return ChangeResult(self.view(), {"for": body.for_}, self._warnings())

        return await self._changes.make(asked, action, body.model or _GATEWAY, do)

    async def _auto(self, asked: AdminRequest) -> AdminResponse:
        body: ModeOf = asked.body
        self._check(body.model)

        def do() -> ChangeResult:
            override = self.end(body.model, body.reason)
            was = None if override is None else _mode_name(override)
            warnings = [] if override is not None else [f"{body.model or _GATEWAY} had no override"]
            return ChangeResult(self.view(), {"was": was}, warnings)

        return await self._changes.make(asked, "degraded.auto", body.model or _GATEWAY, do)

    def _check(self, model: str | None) -> None:
        """Raises Refused if the model is unknown, or has no rules."""
        rules = rules_of(self._config)
        if model is None or model in rules:
            return
        check_known(model, {*self._config.models, *rules}, "model")
        raise Refused(409, "no_degraded_rules", f"{model} has no `degraded` in its rules: add it to the config")

    def _warnings(self) -> list[str]:
        return [] if rules_of(self._config) else [_NO_RULES]

    def _expire(self, model: str | None, who: str, why: str) -> None:
        if (override := self.end(model, why)) is not None:
            detail = {"was": _mode_name(override), "reason": override.reason}
            self._changes.note(who, "degraded.auto", model or _GATEWAY, why, detail)

    def _gateway_view(self, modes: Modes) -> ModeView:
        override = self._overrides.get(None)
        if override is not None:
            return self._view_of(override)
        if not modes.is_degraded:
            return ModeView(False, None, None, None, None, None)
        return ModeView(True, "rule", modes.why, self._iso(modes.since), None, None)

    def _route_view(self, alias: str, mode: RouteMode, modes: Modes, counts: ModelCounts | None) -> RouteModeView:
        found, override, rule = self._gateway_view(modes), self._overrides.get(alias), mode.rule
        if override is not None:
            found = self._view_of(override)
        elif rule.is_degraded:
            found = ModeView(True, "rule", rule.why, self._iso(rule.since), None, None)
        elif mode.is_degraded:
            found = ModeView(True, "gateway", found.reason, found.since, found.until, found.operator)
        else:
            found = ModeView(False, None, None, None, None, None)
        fallback_responses = dict(counts.fallback_responses) if counts is not None else {}
        return RouteModeView(
            found.is_degraded, found.by, found.reason, found.since, found.until, found.operator, alias, rule.calls,
            rule.failed, fallback_responses,
        )  # fmt: skip

    def _view_of(self, override: ModeOverride) -> ModeView:
        until = None if override.until is None else self._iso(override.until)
        return ModeView(override.is_degraded, "operator", override.reason, iso(override.since), until, override.who)

    def _iso(self, at: float | None) -> str | None:
        return None if at is None else iso(self._clock.wall() + at - self._clock.now())


def _mode_name(override: ModeOverride) -> str:
    return "degraded" if override.is_degraded else "normal"
