"""/admin/admit: whether a call for a model would be admitted now, and if not, why. POST also starts a standby engine
where that helps and the config allows it.

`proxy.dry_run` predicts how a call is routed.

GET changes nothing, as everywhere in the admin API; its response names the standby engine that POST would start. The
one exception is an engine with `auto_provision: on_get`, for orchestrators that can only send GET: it is started by a
GET with `auto_provision=true` and an operator's token, but not by HEAD, a viewer's token or a cookie.
"""

from __future__ import annotations

from random import Random
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, answer
from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.proxy.attempts.admission import AtCapacity, Unavailable
from llm_guard.proxy.call import Call
from llm_guard.proxy.dry_run import PredictedCandidate, predict
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_server.error_responses import unknown_model
from llm_guard.resilience.health.engine_state import EngineState
from llm_guard.routing.route_table import Route
from llm_guard.upstreams.engines.registry import Engines
from llm_guard.upstreams.engines.supervisor import EngineReport

NotAdmittedReason = Literal[
    "breaker_open", "credential_cooldown", "deployment_held", "draining", "engine_unhealthy", "queue_full",
    "unknown_model",
]  # fmt: skip

_Model = Annotated[str, Meta(min_length=1, max_length=256)]


class AdmitQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Model to check."""

    model: _Model
    auto_provision: bool = False
    """Starts a standby engine if the engine's config has `auto_provision: on_get`."""


class Admit(Change):
    """Model to check, and to start a standby engine for."""

    model: _Model


class EngineOutlook(Struct, frozen=True):
    engine: str
    deployment: str
    state: EngineState


class Admission(Struct, frozen=True):
    """Response of `GET /admin/admit`."""

    model: str
    admitted: bool
    reason: NotAdmittedReason | None
    """Why the first candidate is not available; null if the call would be admitted."""
    message: str
    deployment: str | None
    """Deployment that would be tried first."""
    engines: list[EngineOutlook]
    """Engines of the model's deployments, in the order in which they would be tried."""
    standby: str | None
    """Standby engine that POST would start, because none of the model's own deployments is available."""
    provisioned: str | None
    """Standby engine that this request has started."""


class AdmissionApi(EndpointGroup):
    """Endpoint of the check, against the current routes and engines."""

    def __init__(self, gateway: Handler, engines: Engines, changes: Changes, clock: Clock) -> None:
        self._gateway = gateway
        self._engines = engines
        self._changes = changes
        self._clock = clock
        self._draw = Random().random  # noqa: S311  # keeps the gateway's random sequence unchanged

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET", "/admin/admit", "Returns whether a call would be admitted now.", self._give, query=AdmitQuery,
                gives=Admission,
            ),
            Endpoint(
                "POST", "/admin/admit", "Checks it, and starts a standby engine if needed.", self._admit,
                takes=Admit, gives=Changed[Admission],
            ),
        ]  # fmt: skip

    async def _give(self, asked: AdminRequest) -> AdminResponse:
        wants: AdmitQuery = asked.wants
        found = self.judge(wants.model)
        if wants.auto_provision and _may_start(asked) and self._is_started_by_get(found.standby):
            reason = f"GET /admin/admit for {wants.model}"
            self._changes.note(asked.who, "engines.provision", str(found.standby), reason, {"model": wants.model})
            found = self._provision(found)
        return answer(found)

    async def _admit(self, asked: AdminRequest) -> AdminResponse:
        model = asked.body.model

        def do() -> ChangeResult:
            found = self.judge(model)
            if found.standby is None:
                return ChangeResult(found, {"model": model}, [f"no engine was started: {_idle(found)}"])
            return ChangeResult(self._provision(found), {"model": model, "engine": found.standby})

        return await self._changes.make(asked, "engines.provision", model, do)

    def judge(self, model: str) -> Admission:
        """Checks whether a call would be admitted. Has no side effect on calls."""
        gateway = self._gateway
        if gateway.is_leaving:
            return _refused(model, "draining", "this gateway is shutting down")
        route = gateway.table.preview(model)
        if route is None:
            return _refused(model, "unknown_model", unknown_model(gateway.table, model).message)
        seen = {upstream: report for report in self._engines.seen() for upstream in report.config.upstreams}
        steps = [
            _Step(candidate, seen.get(candidate.target.deployment.upstream.name))
            for candidate in self._foresee(model, route)
        ]
        able = [step for step in steps if step.reason is None]
        chosen = min(able, key=lambda step: step.foreseen.decision == "backup", default=None)
        own = [step for step in steps if step.foreseen.target.alias == route.alias]
        return Admission(
            model=model,
            admitted=chosen is not None,
            reason=None if chosen is not None else steps[0].reason,
            message="; ".join(step.message for step in steps),
            deployment=None if chosen is None else chosen.label,
            engines=[step.outlook for step in steps if step.outlook is not None],
            standby=_standby(own) if all(step.reason is not None for step in own) else None,
            provisioned=None,
        )

    def _foresee(self, model: str, route: Route) -> list[PredictedCandidate]:
        now = self._clock.now()
        dialect = route.targets[0].deployment.upstream.dialect
        call = Call("", dialect, "POST", DIALECTS[dialect].DEFAULT_PATH, "", (), now, model=model)
        call.route = route
        call.deadline_at = now + route.timeouts.total
        return predict(call, route, self._gateway.cooldowns, self._clock, self._draw)

    def _is_started_by_get(self, engine: str | None) -> bool:
        supervisor = None if engine is None else self._engines.find(engine)
        return supervisor is not None and supervisor.config.provision == "on_get"

    def _provision(self, found: Admission) -> Admission:
        supervisor = None if found.standby is None else self._engines.find(found.standby)
        if supervisor is not None:
            supervisor.start()
        return replace(self.judge(found.model), provisioned=found.standby)


class _Step:
    """A candidate deployment with its engine."""

    __slots__ = ("engine", "foreseen", "label", "message", "reason")

    def __init__(self, foreseen: PredictedCandidate, engine: EngineReport | None) -> None:
        self.foreseen = foreseen
        self.engine = engine
        self.label = foreseen.target.deployment.label
        self.reason: NotAdmittedReason | None = None
        self.message = f"{self.label} is available"
        if engine is not None and engine.now.state != "running":
            self.reason = "engine_unhealthy"
            self.message = f"{self.label}: its engine {engine.name} is {engine.now.state}"
        elif foreseen.decision == "skipped" and foreseen.obstacle is not None:
            self.reason = _reason(foreseen.obstacle)
            self.message = f"{self.label}: {foreseen.obstacle.why}"

    @property
    def outlook(self) -> EngineOutlook | None:
        engine = self.engine
        return None if engine is None else EngineOutlook(engine.name, self.label, engine.now.state)


def _may_start(asked: AdminRequest) -> bool:
    """Returns whether a GET may start an engine. A cookie is not enough: browsers send it with requests that a foreign
    page on this host causes."""
    caller = asked.caller
    return asked.method == "GET" and caller is not None and caller.role == "operator" and not caller.has_cookie


def _reason(obstacle: Unavailable | AtCapacity) -> NotAdmittedReason:
    if isinstance(obstacle, AtCapacity):
        return "queue_full"
    if obstacle.is_held:
        return "deployment_held"
    return "credential_cooldown" if obstacle.why == "in cooldown" else "breaker_open"


def _standby(steps: list[_Step]) -> str | None:
    for step in steps:
        engine = step.engine
        if engine is not None and engine.config.provision != "never" and engine.now.state == "stopped":
            return engine.name
    return None


def _idle(found: Admission) -> str:
    return "calls are admitted" if found.admitted else "the model has no stopped standby engine"


def _refused(model: str, reason: NotAdmittedReason, message: str) -> Admission:
    return Admission(model, False, reason, message, None, [], None, None)
