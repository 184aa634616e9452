"""Finds the cause of an alert when it fires: the upstream that its subject depends on, and how that one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llm_guard.admin.api.parameters import labels_of, serving
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.alerts.rules import RuleName
from llm_guard.resilience.causes.cause import IncidentCause, kind_of
from llm_guard.resilience.causes.provider_errors import ProviderError, latest_of
from llm_guard.routing.deployment import Deployment

_RECENT_S = 120.0
"""Errors older than this do not explain an alert that fires now."""
_OPEN = ("open", "half_open")
_ENDINGS = (" (first token)", " (whole answer)", " (model)")
"""Ends of subjects that are models (`admin.alerting.signals`)."""


class AlertCauses:
    """Looks at the deployments of the present moment; `adopt` applies a new config."""

    def __init__(
        self, config: Config, gateway: Handler, clock: Clock, engines_of: Callable[[RuleName], Sequence[str]]
    ) -> None:
        """`engines_of`: the engines behind an alert about all engines."""
        self._gateway = gateway
        self._clock = clock
        self._engines_of = engines_of
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        self._upstreams = labels_of(config)
        self._models = {key: tuple(serving(config, key)) for key in config.models}
        self._engines = {name: engine.upstreams for name, engine in config.engines.items()}

    def of(self, rule: RuleName, subject: str) -> IncidentCause:
        """Returns the cause of an alert of this rule about this subject."""
        if rule in ("reload_failed", "loop_lag"):
            return IncidentCause("gateway", subject)
        if rule in ("engine_gave_up", "engine_down"):
            return IncidentCause("outage", self._upstream_of_engine(subject))
        if rule in ("engines_down", "engine_restarts"):
            upstreams = {self._upstream_of_engine(engine) for engine in self._engines_of(rule)}
            return IncidentCause("outage", *upstreams) if len(upstreams) == 1 else IncidentCause("gateway", subject)
        if rule == "breaker_open":
            name = subject.removesuffix(" (host)")
            return IncidentCause("outage", name if name != subject else self._upstreams.get(subject, subject))
        if rule == "credential_cooldown":
            return self._of_upstream(subject)
        model = subject
        for ending in _ENDINGS:
            model = model.removesuffix(ending)
        if rule in ("failure_spike", "budget_exhausted") and model == subject:
            return self._of_upstream(self._upstreams.get(subject, subject))
        return self._of_model(model)

    def _upstream_of_engine(self, engine: str) -> str:
        return next(iter(self._engines.get(engine, ())), engine)

    def _of_upstream(self, name: str) -> IncidentCause:
        errors = self._errors(deployment for deployment in self._deployments() if deployment.upstream.name == name)
        return IncidentCause(kind_of([error.kind.category for error in errors]), name)

    def _of_model(self, model: str) -> IncidentCause:
        """Returns the upstream of the model that failed last, or of one with an open breaker; else the model itself."""
        labels = self._models.get(model, ())
        serving_it = [deployment for deployment in self._deployments() if deployment.label in labels]
        held = [one.label for one in serving_it if one.hold is not None or one.breaker.state == "forced_open"]
        if held and len(held) == len(serving_it):
            return IncidentCause("override", held[0])
        failed = {deployment: errors for deployment in serving_it if (errors := self._errors([deployment]))}
        if failed:
            last = max(failed, key=lambda deployment: failed[deployment][0].at)
            return self._of_upstream(last.upstream.name)
        refusing = [one for one in serving_it if one.breaker.state in _OPEN or one.host.state in _OPEN]
        if refusing:
            return IncidentCause("outage", refusing[0].upstream.name)
        return IncidentCause("override", held[0]) if held else IncidentCause("model", model)

    def _deployments(self) -> tuple[Deployment, ...] | list[Deployment]:
        return self._gateway.deployments()

    def _errors(self, deployments: Iterator[Deployment] | list[Deployment]) -> list[ProviderError]:
        now = self._clock.now()
        errors = latest_of({deployment.upstream_errors for deployment in deployments})
        return [error for error in errors if now - error.at < _RECENT_S]
