"""POST /admin/explain: predicts how a call would be routed now. Sends nothing and changes nothing.

`proxy.dry_run` makes the prediction.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.restrictions.restrictions import Restrictions
from llm_guard.admin.schemas.restrictions import Restriction
from llm_guard.clock import Clock
from llm_guard.config import is_pattern
from llm_guard.dialects import DEFAULT_DIALECT, DIALECTS, DialectName
from llm_guard.outcome import Refusal
from llm_guard.proxy.attempts.admission import AtCapacity, Unavailable
from llm_guard.proxy.call import Call
from llm_guard.proxy.dry_run import PredictedCandidate, PredictedUse, forecast_of, predict
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_server.error_responses import DRAINED, unknown_model
from llm_guard.proxy.identification import translate_or_refuse
from llm_guard.proxy.telemetry.waterfall import took
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.retry.hedging import hedge_delay_s
from llm_guard.resilience.routing.candidates import first_token_s
from llm_guard.resilience.routing.client_hints import PRIORITIES
from llm_guard.routing.route_table import Route


class ExplainRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The properties of a call that affect its routing."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    dialect: DialectName = DEFAULT_DIALECT
    path: Annotated[str, Meta(pattern="^/v1/", max_length=1000, description="A path under /v1/.")] | None = None
    """Path of the call; null: the dialect's default path."""
    stream: bool = False
    priority: Literal["high", "normal", "low"] = "normal"


class BudgetOutlook(Struct, frozen=True):
    """Retries available now, and retries that each call adds."""

    tokens: float
    ratio: float


class HedgingOutlook(Struct, frozen=True):
    after: str | float
    """A latency quantile, or seconds."""
    tokens: float


class StreamOutlook(Struct, frozen=True):
    recover: str
    prebuffer_tokens: int | None
    prebuffer_s: float | None
    keepalive_interval_s: float | None


class RouteOutlook(Struct, frozen=True):
    route: str
    matched: Literal["name", "pattern"]
    balance: str
    total_s: float
    budget: BudgetOutlook
    hedging: HedgingOutlook | None
    stream: StreamOutlook
    is_idempotent: bool
    """The call would be retried even if it may have been executed."""


class DeploymentOutlook(Struct, frozen=True):
    """A deployment, in the order in which they would be tried. Durations in seconds."""

    deployment: str
    upstream: str
    model: str | None
    """Model name sent to the upstream."""
    decision: PredictedUse
    """selected: it would be tried at once. queued: the call would wait for it. backup: it would be tried if others
    fail. skipped: it would not be tried."""
    reason: str | None
    """Why it would not be tried now."""
    retry_after_s: float | None
    """Estimated seconds until it is available again; null: it is, or will not be."""
    translated_to: str | None
    """Dialect into which the call would be translated; null: it would be sent as it is."""
    has_own_key: bool
    """The upstream has a key of its own. Otherwise callers bring keys, and their cooldowns and limits are not known
    here."""
    breaker: BreakerState
    breaker_retry_s: float
    host: BreakerState
    host_retry_s: float
    queue_wait_s: float
    """Estimated wait; 0: there is room."""
    queue_timeout_s: float
    connect_s: float
    first_token_s: float
    idle_s: float
    stall_s: float
    attempt_s: float
    max_attempts: int
    hedge_after_s: float | None
    budget: BudgetOutlook


class RefusalOutlook(Struct, frozen=True):
    status: int
    code: str
    message: str
    refused_by: str | None


class Explanation(Struct, frozen=True):
    """Response of `POST /admin/explain`."""

    summary: str
    refusal: RefusalOutlook | None
    route: RouteOutlook | None
    deployments: list[DeploymentOutlook]
    restrictions: list[Restriction] = []
    """The states behind the deployments that would not be tried at once: cause, last errors, and remedy."""


class ExplainApi(EndpointGroup):
    """Endpoint of the prediction, from the current routes and their state."""

    def __init__(self, gateway: Handler, restrictions: Restrictions, clock: Clock) -> None:
        self._gateway = gateway
        self._restrictions = restrictions
        self._clock = clock
        self._draw = Random().random  # noqa: S311  # keeps the gateway's random sequence unchanged

    def pages(self) -> list[Endpoint]:
        summary = "Predicts how a call would be routed now. Sends nothing."
        return [Endpoint("POST", "/admin/explain", summary, self._explain, takes=ExplainRequest, gives=Explanation)]

    async def _explain(self, asked: AdminRequest) -> AdminResponse:
        explanation = self.explain(asked.body)
        aside = {outlook.deployment: outlook.upstream for outlook in explanation.deployments if outlook.reason}
        found = await self._restrictions.all(shows_messages=asked.is_operators) if aside else []
        behind = [
            one
            for one in found
            if one.deployment in aside
            or (one.deployment is None and one.upstream is not None and one.upstream in aside.values())
        ]
        return answer(msgspec.structs.replace(explanation, restrictions=behind))

    def explain(self, request: ExplainRequest) -> Explanation:
        """Predicts how a call would be routed. Has no side effect on calls."""
        gateway, now = self._gateway, self._clock.now()
        path = request.path or DIALECTS[request.dialect].DEFAULT_PATH
        call = Call("", request.dialect, "POST", path, "", (), now, model=request.model, is_stream=request.stream)
        call.priority = PRIORITIES[request.priority]
        call.route = gateway.table.preview(request.model)
        if gateway.is_closed:
            return _refused(DRAINED, None)
        if call.route is None:
            return _refused(unknown_model(gateway.table, request.model), None)
        call.is_repeatable = gateway.repeatable.allows("POST", path, is_stateful=False)
        call.deadline_at = now + call.route.timeouts.total
        route = _route_outlook(call, call.route, now)
        is_own = call.route.dialect == call.dialect
        refusal = None if is_own else translate_or_refuse(call, call.route, gateway.table)
        if refusal is not None:
            return _refused(refusal, route)
        foreseen = predict(call, call.route, gateway.cooldowns, self._clock, self._draw)
        outlooks = [_outlook(candidate, call, call.route, now) for candidate in foreseen]
        return Explanation(_summary(request.model, call.route, outlooks), None, route, outlooks)


def _refused(refusal: Refusal, route: RouteOutlook | None) -> Explanation:
    shown = RefusalOutlook(refusal.status, refusal.code, refusal.message, refusal.by)
    return Explanation(f"It would be refused with {refusal.status}: {refusal.message}.", shown, route, [])


def _route_outlook(call: Call, route: Route, now: float) -> RouteOutlook:
    budget, hedging, stream = route.budget.snapshot(now), route.hedging, route.stream
    prebuffer, waiting = stream.prebuffer, stream.keepalive
    return RouteOutlook(
        route=route.alias,
        matched="pattern" if is_pattern(route.alias) else "name",
        balance=route.balance,
        total_s=route.timeouts.total,
        budget=BudgetOutlook(budget.tokens, budget.ratio),
        hedging=HedgingOutlook(hedging.settings.after, hedging.budget.snapshot().tokens) if hedging else None,
        stream=StreamOutlook(
            stream.recover,
            prebuffer.tokens if prebuffer else None,
            prebuffer.time if prebuffer else None,
            waiting.interval if waiting else None,
        ),
        is_idempotent=call.is_repeatable,
    )


def _outlook(foreseen: PredictedCandidate, call: Call, route: Route, now: float) -> DeploymentOutlook:
    target, obstacle = foreseen.target, foreseen.obstacle
    deployment, timeouts = target.deployment, target.timeouts
    latency, hedging = deployment.latency_of(call.is_stream), route.hedging
    budget = deployment.budget.snapshot(now)
    return DeploymentOutlook(
        deployment=deployment.label,
        upstream=deployment.upstream.name,
        model=target.model,
        decision=foreseen.decision,
        reason=_reason(foreseen),
        retry_after_s=None if obstacle is None or obstacle.wait_s == inf else obstacle.wait_s,
        translated_to=None if deployment.upstream.speaks(call.dialect, call.path) else deployment.upstream.dialect,
        has_own_key=deployment.upstream.has_own_key,
        breaker=deployment.breaker.state,
        breaker_retry_s=deployment.breaker.retry_after_s(now),
        host=deployment.host.state,
        host_retry_s=deployment.host.retry_after_s(now),
        queue_wait_s=forecast_of(target, now, call).wait_s,
        queue_timeout_s=target.queue_wait_s,
        connect_s=timeouts.connect,
        first_token_s=first_token_s(timeouts, deployment.first_tokens, now),
        idle_s=timeouts.idle,
        stall_s=timeouts.stall,
        attempt_s=timeouts.attempt_s(is_client_timeout_known=False),
        max_attempts=target.retry.max_attempts,
        hedge_after_s=hedge_delay_s(hedging.settings, latency, now) if hedging and call.is_repeatable else None,
        budget=BudgetOutlook(budget.tokens, budget.ratio),
    )


def _reason(foreseen: PredictedCandidate) -> str | None:
    obstacle = foreseen.obstacle
    if isinstance(obstacle, Unavailable) and obstacle.rest is not None:
        return f"{obstacle.why}: {obstacle.rest.detail}"
    if isinstance(obstacle, AtCapacity) and foreseen.decision != "skipped":
        return "at its concurrency limit"  # there will be later
    return None if obstacle is None else obstacle.why


def _summary(model: str, route: Route, outlooks: list[DeploymentOutlook]) -> str:
    start = f"{model!r} matches the route {route.alias!r}"
    by_decision = {
        name: [outlook for outlook in outlooks if outlook.decision == name] for name in get_args(PredictedUse)
    }
    names = [f"{outlook.deployment} ({outlook.reason})" for outlook in by_decision["skipped"]]
    skipped = f"; skipped: {', '.join(names)}" if names else ""
    backups = ", ".join(outlook.deployment for outlook in by_decision["backup"])
    then = f", and {backups} if that fails" if backups else ""
    for first in by_decision["selected"]:
        return f"{start}: {first.deployment} would be tried at once{then}{skipped}."
    for first in by_decision["queued"]:
        return f"{start}: the call would wait about {took(first.queue_wait_s)} for {first.deployment}{then}{skipped}."
    waits = [outlook for outlook in outlooks if outlook.retry_after_s is not None]
    soonest = min(waits or outlooks, key=lambda outlook: outlook.retry_after_s or 0.0)
    wait = took(soonest.retry_after_s or 0.0)
    return f"{start}: no deployment is available; {soonest.deployment} will be in {wait}{skipped}."
