"""Lists what refuses or delays calls now: breakers, cooldowns, paces, limits, holds and modes.

The other modules of this folder describe each, `admin.restrictions.evidence` adds what they are based on, and
`admin.api.restrictions` resets them.

A refused retry is not listed: with an empty retry budget the provider's own error is passed on, and the alert
`budget_exhausted` fires. Nor are callers' mistakes (refused by auth, request, route): no operator can lift them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_guard.admin.api.chaos import ChaosApi
from llm_guard.admin.api.degraded import DegradedApi
from llm_guard.admin.api.deployments import DeploymentApi
from llm_guard.admin.api.history import HistoryApi
from llm_guard.admin.api.limits import LimitApi
from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.cooperative import CooperativePauses
from llm_guard.admin.overrides.breaker_overrides import BreakerSelector
from llm_guard.admin.restrictions import cooldowns as of_cooldowns
from llm_guard.admin.restrictions import deployments as of_deployments
from llm_guard.admin.restrictions import health_checks
from llm_guard.admin.restrictions import operator as of_operators
from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.restrictions.evidence import RestrictionEvidence, models_by_label
from llm_guard.admin.schemas.restrictions import Restriction
from llm_guard.config import Config
from llm_guard.routing.deployment import Deployment

_LOOKS_OF_A_DEPLOYMENT = 10
_GATES_A_LOOK = 4
_SHOWN_S = 60.0


class _Refusals:
    """A refusal counter that stays listed for a minute after the last refusal."""

    __slots__ = ("_at", "_before", "_count", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        """Instant of the first refusal of a series without a minute's pause; None: there was none within the last
        minute."""
        self._at = 0.0
        self._before = self._count = 0

    @property
    def refused(self) -> int:
        """Refusals of the series."""
        return self._count - self._before

    def look(self, count: int, now: float) -> None:
        """`count`: all refusals so far."""
        if count != self._count:
            self._before = self._count if self.since is None else self._before
            self._count, self._at = count, now
        self.since = _since(self.since, count > 0 and now - self._at < _SHOWN_S, now)


class Restrictions:
    """Collects the current restrictions on each request."""

    def __init__(
        self,
        config: Config,
        running: AdminContext,
        history: HistoryApi,
        controls: DeploymentApi,
        limits: LimitApi,
        degraded: DegradedApi,
        chaos: ChaosApi,
    ) -> None:
        self._running = running
        self._gateway = running.gateway
        self._clock = running.clock
        self._history = history
        self._controls = controls
        self._limits = limits
        self._degraded = degraded
        self._chaos = chaos
        self._drained_since: float | None = None
        self._full_since: float | None = None
        self._spool = _Refusals()
        self._connections = _Refusals()
        self._handshakes = _Refusals()
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        self._most_deferred = config.store.deferred.max_pending
        self._models = models_by_label(config)

    def look(self, now: float) -> None:
        """Notes when the gateway as a whole began to refuse something."""
        self._drained_since = _since(self._drained_since, self._gateway.is_leaving or self._gateway.is_closed, now)
        self._full_since = _since(self._full_since, self._running.deferred.counts.waiting >= self._most_deferred, now)
        self._spool.look(self._gateway.spool.refused, now)
        if listeners := self._running.listeners():
            self._connections.look(listeners[0].refused, now)
            self._handshakes.look(listeners[0].failed_handshakes, now)

    async def all(self, *, shows_messages: bool) -> list[Restriction]:
        """Returns those of the whole gateway first, then operators' overrides, then those of deployments.
        `shows_messages`: with the first words of providers' messages, for operators."""
        pauses = CooperativePauses(self._clock)
        moment = self._moment()
        self.look(moment.now)
        found = [*self._common(moment), *self._said(moment)]
        deployments, latest = self._gateway.deployments(), self._latest_attempts()
        for deployment in deployments:
            found += self._own(deployment, latest, moment)
            gates = len(deployment.gates.all())
            await pauses.after(_LOOKS_OF_A_DEPLOYMENT + gates // _GATES_A_LOOK)
        for restriction in self._shared(deployments, moment):
            found.append(restriction)
            await pauses.after(_LOOKS_OF_A_DEPLOYMENT)
        evidence = RestrictionEvidence(self._models, deployments, moment, shows_messages=shows_messages)
        for place, restriction in enumerate(found):
            found[place] = evidence.added_to(restriction)
            await pauses.after(_LOOKS_OF_A_DEPLOYMENT)
        return found

    def of(self, aim: BreakerSelector) -> list[Restriction]:
        """Returns the restrictions of these deployments, or of this upstream, for an operator."""
        moment = self._moment()
        deployments, latest = self._meant(aim), self._latest_attempts()
        found = [*self._said(moment), *self._shared(deployments, moment)]
        for deployment in deployments if aim.upstream is None else ():
            found += self._own(deployment, latest, moment)
        labels = {deployment.label for deployment in deployments}
        upstreams = {deployment.upstream.name for deployment in deployments}
        evidence = RestrictionEvidence(self._models, deployments, moment, shows_messages=True)
        return [
            evidence.added_to(restriction)
            for restriction in found
            if (restriction.deployment in labels and aim.model in (None, restriction.model) and aim.upstream is None)
            or (restriction.deployment is None and restriction.upstream in upstreams)
        ]

    def _meant(self, aim: BreakerSelector) -> list[Deployment]:
        return [deployment for deployment in self._gateway.deployments() if aim.breaker(deployment) is not None]

    def _moment(self) -> Moment:
        return Moment(self._clock.now(), self._clock.wall())

    def _common(self, moment: Moment) -> Iterator[Restriction]:
        if self._drained_since is not None:
            yield of_operators.of_drain(self._drained_since, moment)
        if self._full_since is not None:
            waiting = self._running.deferred.counts.waiting
            yield of_operators.of_deferred_queue(waiting, self._most_deferred, self._full_since, moment)
        if self._spool.since is not None:
            spool = self._gateway.spool
            yield of_operators.of_spool(
                spool.used_bytes, spool.max_bytes, self._spool.refused, self._spool.since, moment
            )
        if self._connections.since is not None:
            listeners = self._running.listeners()
            most = listeners[0].settings.max_connections
            yield of_operators.of_connections(
                most, self._connections.refused, len(listeners) == 1, self._connections.since, moment
            )
        if self._handshakes.since is not None:
            yield of_operators.of_tls_handshakes(self._handshakes.refused, self._handshakes.since, moment)
        yield from of_operators.of_modes(self._degraded.view())
        yield from self._of_clients(moment)
        for model in tuple(self._running.counters.models):
            calls, refused = self._history.refusals(model)
            if timed_out := refused.get("deadline", 0):
                since = self._history.refused_since(model, "deadline")
                yield of_operators.of_deadline(model, calls, timed_out, since, moment)

    def _of_clients(self, moment: Moment) -> Iterator[Restriction]:
        for name, limits in self._gateway.quotas.by_name.items():
            left = {limit.limit: limit for limit in limits.left(moment.now, moment.wall)}
            for refusing in limits.refusing(moment.now):
                if refusing.limit in left:
                    yield of_operators.of_client_limit(name, left[refusing.limit], refusing, moment)

    def _said(self, moment: Moment) -> Iterator[Restriction]:
        """Yields operators' overrides."""
        for force in self._controls.forces.all():
            if force.state == "forced_open":
                breakers = {force.aim.breaker(deployment) for deployment in self._meant(force.aim)} - {None}
                refused = sum(breaker.refused for breaker in breakers if breaker is not None)
                yield of_operators.of_force(force, refused, moment)
        for label, hold in self._controls.holds.all():
            held = sum(deployment.held for deployment in self._gateway.deployments() if deployment.label == label)
            yield of_operators.of_hold(label, hold, held, moment)
        upstreams = {deployment.label: deployment.upstream.name for deployment in self._gateway.deployments()}
        for override in self._chaos.overrides.all():
            yield of_operators.of_fault(override, upstreams.get(override.fault.deployment or ""), moment)

    def _latest_attempts(self) -> dict[Deployment, float]:
        """Returns when the latest running attempt on each deployment began."""
        latest: dict[Deployment, float] = {}
        for call in self._gateway.calls():
            for attempt in call.attempts:
                if attempt.ended_at is None:
                    deployment = attempt.target.deployment
                    latest[deployment] = max(attempt.started_at, latest.get(deployment, attempt.started_at))
        return latest

    def _own(self, deployment: Deployment, latest: Mapping[Deployment, float], moment: Moment) -> Iterator[Restriction]:
        """Yields the restrictions of one deployment."""
        breaker = deployment.breaker
        if breaker.state == "forced_open" and not self._controls.forces.has_taken(breaker):
            yield of_operators.of_config_force(deployment)
        yield from of_deployments.of_breaker(deployment, moment)
        is_changed = "concurrency" in self._limits.overrides().get(deployment.label, {})
        yield from of_deployments.of_gates(
            deployment, moment, full_since=latest.get(deployment), is_limit_changed=is_changed
        )

    def _shared(self, deployments: tuple[Deployment, ...] | list[Deployment], moment: Moment) -> Iterator[Restriction]:
        """Yields the restrictions that several deployments share: those of hosts and credentials."""
        for deployment in {deployment.host: deployment for deployment in deployments}.values():
            yield from of_deployments.of_host(deployment, moment)
        cooldowns = self._gateway.cooldowns
        if moment.now < cooldowns.quiet_from:
            yield from of_cooldowns.of_cooldowns(cooldowns.snapshot(moment.now), deployments, moment)
        names = {deployment.upstream.name for deployment in deployments}
        yield from health_checks.of_probes(view for view in self._running.prober.views() if view.upstream in names)
        for restriction in health_checks.of_engines(self._running.engines.seen(), moment):
            if restriction.upstream in names:
                yield restriction


def _since(before: float | None, is_so: bool, now: float) -> float | None:
    if not is_so:
        return None
    return now if before is None else before
