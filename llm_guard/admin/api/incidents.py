"""GET /admin/incidents: what goes wrong now, one entry for each cause.

`admin.incidents.grouping` groups; this module collects what it needs.
"""

from __future__ import annotations

from llm_guard.admin.alerting.alerts import Alerts
from llm_guard.admin.alerting.raised_alert import RaisedAlert
from llm_guard.admin.api.history import HistoryApi
from llm_guard.admin.api.parameters import labels_of, serving
from llm_guard.admin.http.cooperative import CooperativePauses
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.incidents.alert_causes import AlertCauses
from llm_guard.admin.incidents.grouping import ModelTraffic, Present, incidents
from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.restrictions.evidence import view_of
from llm_guard.admin.restrictions.restrictions import Restrictions
from llm_guard.admin.schemas.incidents import Incident, IncidentAlert
from llm_guard.admin.schemas.restrictions import ProviderErrorView
from llm_guard.clock import Clock, iso
from llm_guard.config import Config
from llm_guard.outcome import FailureKind
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.causes.provider_errors import KEPT, ErrorLog, latest_of
from llm_guard.webhooks.payloads import plain

_LOOKS_OF_A_MODEL = 15
_CURRENT_S = 600.0
"""Errors older than this explain no alert that fires now."""
_RECENT_S = 120.0
"""Without a call in this time, an unknown path is no longer reported."""
_UNKNOWN_PATH = (FailureKind.WRONG_PATH, FailureKind.MISROUTED)


class IncidentApi(EndpointGroup):
    """Endpoint of incidents, against the current config; a reload replaces it."""

    def __init__(
        self,
        config: Config,
        gateway: Handler,
        restrictions: Restrictions,
        alerts: Alerts,
        causes: AlertCauses,
        history: HistoryApi,
        clock: Clock,
    ) -> None:
        self._gateway = gateway
        self._restrictions = restrictions
        self._alerts = alerts
        self._causes = causes
        self._history = history
        self._clock = clock
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        self._causes.adopt(config)
        self._upstreams = labels_of(config)
        self._models = {key: tuple(serving(config, key)) for key in config.models}

    def pages(self) -> list[Endpoint]:
        summary = "Lists what goes wrong now, one entry for each cause: models hit, the gateway's response, and remedy."
        return [Endpoint("GET", "/admin/incidents", summary, self._give, gives=list[Incident])]

    async def _give(self, asked: AdminRequest) -> AdminResponse:
        restrictions = await self._restrictions.all(shows_messages=asked.is_operators)
        alerts = [(self._view(raised), raised.cause) for raised in self._alerts.firing()]
        misconfigured = self._misconfigured()
        if not restrictions and not alerts and not misconfigured:
            return answer([])
        models = await self._traffic()
        errors = self._errors(shows_messages=asked.is_operators)
        return answer(incidents(Present(restrictions, alerts, models, self._upstreams, errors, misconfigured)))

    def _view(self, raised: RaisedAlert) -> IncidentAlert:
        return IncidentAlert(
            raised.id, raised.alert, raised.subject, raised.severity, plain(raised.finding.summary), iso(raised.since),
            self._alerts.is_silenced(raised),
        )  # fmt: skip

    async def _traffic(self) -> dict[str, ModelTraffic]:
        pauses, found = CooperativePauses(self._clock), {}
        for model, labels in self._models.items():
            tally = self._history.model(model).tally
            found[model] = ModelTraffic(tally.calls, tally.judged - tally.ok, labels)
            await pauses.after(_LOOKS_OF_A_MODEL)
        return found

    def _misconfigured(self) -> frozenset[str]:
        """Returns the upstreams that answered the last calls with an unknown path, with no success since."""
        ago_s = self._clock.wall() - self._clock.now()
        logs: dict[str, tuple[ErrorLog, float]] = {}
        for deployment in self._gateway.deployments():
            log, succeeded_at = logs.get(deployment.upstream.name, (deployment.upstream_errors, 0.0))
            logs[deployment.upstream.name] = log, max(succeeded_at, deployment.last_success_wall or 0.0)
        return frozenset(name for name, (log, wall) in logs.items() if self._knows_no_path(log, wall - ago_s))

    def _knows_no_path(self, log: ErrorLog, succeeded_at: float) -> bool:
        errors = log.latest()
        return (
            len(errors) == KEPT
            and all(error.kind in _UNKNOWN_PATH for error in errors)
            and errors[0].at > self._clock.now() - _RECENT_S
            and errors[-1].at > succeeded_at
        )

    def _errors(self, *, shows_messages: bool) -> dict[str, list[ProviderErrorView]]:
        moment = Moment(self._clock.now(), self._clock.wall())
        logs = {deployment.upstream.name: deployment.upstream_errors for deployment in self._gateway.deployments()}
        return {
            name: [
                view_of(error, moment, shows_message=shows_messages)
                for error in latest_of([log])
                if moment.now - error.at < _CURRENT_S
            ]
            for name, log in logs.items()
        }
