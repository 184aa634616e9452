"""Builds snapshots: /admin/metrics, /admin/deployments and /admin/breakers.

`admin.schemas.models` has the schemas, `proxy.telemetry.recorder` the counts, `admin.api.health` the health of
deployments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from llm_guard.admin.api import deployment_aggregation
from llm_guard.admin.api.clients import ClientView
from llm_guard.admin.api.health import Group, HealthApi, worst
from llm_guard.admin.api.history import HistoryApi, LastMinuteCounts
from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.cooperative import CooperativePauses
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.monitor import rates
from llm_guard.admin.monitor.rates import CallTally
from llm_guard.admin.restrictions.cooldowns import credentials_in_cooldown
from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.restrictions.evidence import OF_BREAKERS, by_label
from llm_guard.admin.restrictions.restrictions import Restrictions
from llm_guard.admin.schemas.models import (
    BreakerOverrideView,
    DeploymentDetail,
    DeploymentView,
    LabelledBreaker,
    ModelView,
    Snapshot,
    Traffic,
)
from llm_guard.admin.schemas.restrictions import Restriction
from llm_guard.admin.schemas.subsystems import (
    CacheView,
    DegradedView,
    EngineView,
    FleetView,
    ProbedView,
    StoredCallsView,
)
from llm_guard.config import Config
from llm_guard.proxy.telemetry.access_log import Timestamps
from llm_guard.proxy.telemetry.recorder import DeploymentCounts, ModelCounts
from llm_guard.resilience.health.status import HealthVerdict, evaluate_refusals
from llm_guard.version import __version__

OverrideLookup = Callable[[str], BreakerOverrideView | None]
"""Returns the operator's override of the breakers with a label."""
Groups = Mapping[str, Group]

_LOOKS_OF_A_MODEL = 15
_LOOKS_OF_A_LABEL = 40
_LOOKS_OF_A_PROBE = 10
_GATES_A_LOOK = 4


@dataclass(frozen=True, slots=True)
class Others:
    """Views of cache, stored calls, engines, probes, degraded modes, client keys and the fleet."""

    degraded: Callable[[], DegradedView]
    engines: Callable[[], list[EngineView]]
    probes: Callable[[], Iterable[ProbedView]]
    """An iterator, as there may be a thousand."""
    cache: Callable[[], CacheView | None]
    stored_calls: Callable[[], StoredCallsView | None]
    clients: Callable[[], list[ClientView]]
    fleet: Callable[[], FleetView | None]


class Overview(EndpointGroup):
    """Builds each view when it is requested."""

    def __init__(
        self,
        config: Config,
        running: AdminContext,
        history: HistoryApi,
        health: HealthApi,
        forced: OverrideLookup,
        max_lag_s: Callable[[], float],
        others: Others,
        restrictions: Restrictions,
    ) -> None:
        self._running = running
        self._gateway = running.gateway
        self._counters = running.counters
        self._history = history
        self._health = health
        self._forced = forced
        self._max_lag_s = max_lag_s
        self._others = others
        self._restrictions = restrictions
        self._started_at = running.clock.now()
        self._timestamps = Timestamps()
        self.notice: list[str] = []
        """Lines for the top of the dashboard."""
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the models of a new config."""
        self._models = tuple(config.models)

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/metrics", "Returns a snapshot of everything.", self._give_snapshot, gives=Snapshot),
            Endpoint(
                "GET", "/admin/deployments", "Lists all deployments.", self._give_deployments,
                gives=list[DeploymentDetail],
            ),
            Endpoint("GET", "/admin/breakers", "Lists all breakers.", self._give_breakers, gives=list[LabelledBreaker]),
        ]  # fmt: skip

    async def snapshot(self) -> Snapshot:
        """Returns a snapshot of everything."""
        clock, gateway = self._running.clock, self._gateway
        pauses = CooperativePauses(clock)
        groups = self._health.groups()
        verdicts = await self._health.judged(groups, pauses)
        summary = self._health.summed_up(verdicts)
        lately, whole = await self._lately(pauses)
        models = await self._model_views(lately, pauses)
        deployments = await self._deployment_views(groups, verdicts, pauses)
        probes = await self._probed(pauses)
        others, listeners = self._others, self._running.listeners()
        now = clock.now()
        return Snapshot(
            self._timestamps.of(clock.wall()),
            __version__,
            round(now - self._started_at, 3),
            gateway.is_leaving,
            summary.health,
            list(summary.why),
            self._total(whole),
            models,
            deployments,
            others.degraded(),
            others.engines(),
            probes,
            others.cache(),
            others.stored_calls(),
            len(credentials_in_cooldown(gateway.cooldowns.snapshot(now))),
            sum(listener.count for listener in listeners),
            listeners[0].settings.max_connections if listeners else 0,
            round(self._max_lag_s(), 4),
            others.clients(),
            others.fleet(),
            self.notice,
        )

    def deployment(self, label: str) -> DeploymentView | None:
        """Returns the current view of one deployment."""
        group = self._health.groups().get(label)
        return None if group is None else self._view(label, group, self._health.verdict(label, group))

    async def _give_snapshot(self, _asked: AdminRequest) -> AdminResponse:
        snapshot = await self.snapshot()
        await self._running.clock.sleep(0)  # encoding a thousand deployments takes 2 ms
        return answer(snapshot)

    async def _give_deployments(self, asked: AdminRequest) -> AdminResponse:
        groups, pauses = self._health.groups(), CooperativePauses(self._running.clock)
        found = by_label(groups, await self._restrictions.all(shows_messages=asked.is_operators))
        views = await self._deployment_views(groups, await self._health.judged(groups, pauses), pauses)
        return answer(
            [DeploymentDetail(**msgspec.structs.asdict(view), restrictions=found[view.deployment]) for view in views]
        )

    async def _give_breakers(self, asked: AdminRequest) -> AdminResponse:
        pauses, views, groups = CooperativePauses(self._running.clock), [], self._health.groups()
        found = by_label(groups, await self._restrictions.all(shows_messages=asked.is_operators))
        for label, group in groups.items():
            breakers = [one for one in found[label] if one.kind in OF_BREAKERS]
            views.append(self._labelled(label, group, breakers))
            await pauses.after(_LOOKS_OF_A_LABEL + len(group))
        return answer(views)

    async def _lately(self, pauses: CooperativePauses) -> tuple[dict[str, LastMinuteCounts], CallTally]:
        """Returns the recent traffic of each model that was called since the start, and the sum over all."""
        found, whole = {}, rates.NOTHING
        for name in tuple(self._counters.models):
            lately = found[name] = self._history.model(name)
            whole = whole.plus(lately.tally)
            await pauses.after(_LOOKS_OF_A_MODEL)
        return found, whole

    def _total(self, whole: CallTally) -> Traffic:
        models = self._counters.models
        return _traffic(
            self._history.lately(whole),
            sum(sum(counts.calls.values()) for counts in models.values()),
            rates.share(sum(self._counters.recent), len(self._counters.recent)),
            sum(counts.begun - counts.ended for counts in models.values()),
        )

    async def _model_views(self, lately: Mapping[str, LastMinuteCounts], pauses: CooperativePauses) -> list[ModelView]:
        """Returns the models of the config first, in its order."""
        views = []
        for name in dict.fromkeys((*self._models, *lately)):
            views.append(self._model_view(name, lately.get(name) or self._history.model(name)))
            await pauses.after(_LOOKS_OF_A_MODEL)
        return views

    def _model_view(self, name: str, lately: LastMinuteCounts) -> ModelView:
        counts = self._counters.models.get(name) or ModelCounts()
        traffic = _traffic(
            lately,
            sum(counts.calls.values()),
            rates.share(sum(counts.recent), len(counts.recent)),
            counts.begun - counts.ended,
        )
        verdict = evaluate_refusals(lately.tally.calls, lately.tally.refused_by)
        return ModelView(name, traffic, dict(counts.calls), verdict.health, list(verdict.why))

    async def _deployment_views(
        self, groups: Groups, verdicts: Mapping[str, HealthVerdict], pauses: CooperativePauses
    ) -> list[DeploymentView]:
        """Returns the views, with pauses: a pattern has hundreds of deployments, and each may have a thousand
        callers."""
        views = []
        for label, group in groups.items():
            views.append(self._view(label, group, verdicts[label]))
            gates = sum(len(deployment.gates.all()) for deployment in group)
            await pauses.after(_LOOKS_OF_A_LABEL + len(group) + gates // _GATES_A_LOOK)
        return views

    def _view(self, label: str, group: Group, verdict: HealthVerdict) -> DeploymentView:
        now, first, upstream = self._running.clock.now(), group[0], group[0].upstream
        lately = self._history.deployment(label).tally
        counts = self._counters.deployments.get(label) or DeploymentCounts()
        last_success = max((deployment.last_success_wall or 0.0 for deployment in group), default=0.0)
        last_ok = max((self._running.prober.last_ok_wall(deployment) or 0.0 for deployment in group), default=0.0)
        return DeploymentView(
            label,
            upstream.name,
            upstream.dialect,
            first.model if len({deployment.model for deployment in group}) == 1 else None,
            verdict.health,
            list(verdict.why),
            sum(counts.attempts.values()),
            dict(counts.attempts),
            _rounded(lately.success_rate),
            _rounded(rates.share(lately.timeouts, lately.attempts)),
            _rounded(rates.share(sum(lately.refused), lately.calls)),
            rates.quantiles(rates.DURATION_BOUNDS, lately.durations),
            rates.quantiles(rates.DURATION_BOUNDS, lately.failed_durations),
            deployment_aggregation.first_tokens(group, now),
            self._timestamps.of(last_success) if last_success else None,
            self._running.dials(upstream.connections),
            deployment_aggregation.breaker_view(group, self._forced(label), self._moment()),
            worst(deployment.host.state for deployment in group),
            deployment_aggregation.gate_view(group, now),
            deployment_aggregation.budget_view(group, now),
            self._health.hold(label),
            self._timestamps.of(last_ok) if last_ok else None,
        )

    async def _probed(self, pauses: CooperativePauses) -> list[ProbedView]:
        views = []
        for view in self._others.probes():
            views.append(view)
            await pauses.after(_LOOKS_OF_A_PROBE)
        return views

    def _labelled(self, label: str, group: Group, restrictions: list[Restriction]) -> LabelledBreaker:
        view = deployment_aggregation.breaker_view(group, self._forced(label), self._moment())
        return LabelledBreaker(**msgspec.structs.asdict(view), deployment=label, restrictions=restrictions)

    def _moment(self) -> Moment:
        return Moment(self._running.clock.now(), self._running.clock.wall())


def _traffic(lately: LastMinuteCounts, calls: int, success_rate: float | None, in_flight: int) -> Traffic:
    news = lately.tally
    return Traffic(
        calls,
        _rounded(success_rate),
        round(lately.calls_per_second, 3),
        _rounded(rates.share(news.retries, news.calls)),
        _rounded(rates.share(news.attempts, news.calls)),
        _rounded(rates.share(news.timeouts, news.attempts)),
        _rounded(rates.share(sum(news.refused), news.calls)),
        in_flight,
        rates.quantiles(rates.DURATION_BOUNDS, news.durations),
        rates.quantiles(rates.DURATION_BOUNDS, news.failed_durations),
        rates.quantiles(rates.DURATION_BOUNDS, news.refused_durations),
        rates.quantiles(rates.FIRST_TOKEN_BOUNDS, news.first_tokens),
    )


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
