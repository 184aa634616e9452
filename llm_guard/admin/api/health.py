"""Health of deployments and of the gateway as a whole: /admin/health, the details of /readyz, and /healthz.

Gathers the signals; `resilience.health.status` evaluates them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from llm_guard.admin.api.history import HistoryApi
from llm_guard.admin.api.parameters import left_alone
from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.cooperative import CooperativePauses
from llm_guard.admin.http.endpoint import TEXT, AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.schemas.models import Counted, HealthSummary, HoldView
from llm_guard.config import Config, is_pattern
from llm_guard.resilience.circuit_breaker.cooldown import CooldownKey
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.health.status import (
    HealthSignals,
    HealthState,
    HealthVerdict,
    evaluate_refusals,
    judge,
    mode_words,
    sum_up,
    with_modes,
    with_refusals,
)
from llm_guard.routing.deployment import Deployment

WORST_FIRST: tuple[BreakerState, ...] = (
    "forced_open", "open", "half_open", "closed", "forced_closed", "metrics_only", "disabled",
)  # fmt: skip
_LOOKS_OF_A_LABEL = 10
_REASONS = 20
"""Most lines in /readyz."""
_REASONS_KEPT_S = 1.0

HoldLookup = Callable[[str], HoldView | None]
"""Returns the operator's hold on the deployment with a label."""
Group = Sequence[Deployment]
"""Deployments with one label: each name under a pattern has a breaker of its own."""


class HealthApi(EndpointGroup):
    """Evaluates the health when it is requested."""

    def __init__(self, config: Config, running: AdminContext, history: HistoryApi, holds: HoldLookup) -> None:
        self._gateway = running.gateway
        self._counted = running.counters.deployments
        self._models = running.counters.models
        self._clock = running.clock
        self._history = history
        self._prober = running.prober
        self.hold = holds
        self._known_reasons: list[str] = []
        self._looked_at = float("-inf")
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        self._config = config
        self._settings = config.ops.health

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/healthz", "Liveness: 200 while the event loop runs.", _alive, media=TEXT, is_open=True),
            Endpoint(
                "GET", "/readyz", "Readiness: 503 during shutdown. With a token: reasons.", self._ready,
                media=TEXT, is_open=True, says_more=True, other_statuses={503: "The gateway is shutting down."},
            ),
            Endpoint("GET", "/admin/health", "Returns the health of all deployments.", self._give, gives=HealthSummary),
        ]  # fmt: skip

    def states(self) -> Iterator[tuple[str, HealthState]]:
        """Yields the health of each label, evaluated on the way: the consumer may pause in between."""
        now = self._clock.now()
        rests = self._rests(now)
        for label, group in self.groups().items():
            yield label, judge(self._signs(label, group, rests, now), self._settings).health

    def groups(self) -> dict[str, list[Deployment]]:
        """Returns all deployments, by label."""
        groups: dict[str, list[Deployment]] = {}
        for deployment in self._gateway.deployments():
            groups.setdefault(deployment.label, []).append(deployment)
        return groups

    async def judged(self, groups: Mapping[str, Group], pauses: CooperativePauses) -> dict[str, HealthVerdict]:
        now = self._clock.now()
        rests, verdicts = self._rests(now), {}
        for label, group in groups.items():
            verdicts[label] = judge(self._signs(label, group, rests, now), self._settings)
            await pauses.after(_LOOKS_OF_A_LABEL + len(group))
        return verdicts

    def verdict(self, label: str, group: Group) -> HealthVerdict:
        now = self._clock.now()
        return judge(self._signs(label, group, self._rests(now), now), self._settings)

    def _rests(self, now: float) -> dict[CooldownKey, float]:
        """Returns the seconds left of each cooldown, by kind, upstream, base URL, digest of the key, account, and the
        model unless all models are meant."""
        rests = self._gateway.cooldowns.snapshot(now).items()
        return {(key[0], *key[-4 if key[0] == "credential" else -5 :]): rest.until - now for key, rest in rests}

    def summed_up(self, verdicts: Mapping[str, HealthVerdict]) -> HealthVerdict:
        """Returns the health of the gateway. Deployments count as in use once they have had an attempt. A pattern is
        not counted as out because one of its names is."""
        healths = {label: verdict.health for label, verdict in verdicts.items()}
        asked = [label for label in verdicts if label in self._counted]
        out = {label for label in asked if healths[label] in ("unhealthy", "failed")}
        alone = left_alone(self._config, out) if out else []
        whole = sum_up(healths, asked, [key for key in alone if key in self._models and not is_pattern(key)])
        return with_modes(self._with_refusals(whole), self._mode_words())

    def _with_refusals(self, whole: HealthVerdict) -> HealthVerdict:
        all_calls, all_refused, suffering = 0, Counter[str](), {}
        for name in tuple(self._models):
            calls, refused = self._history.refusals(name)
            all_calls += calls
            for by, count in refused.items():
                all_refused[by] += count
            verdict = evaluate_refusals(calls, refused)
            if verdict.health != "healthy":
                suffering[name] = verdict
        return with_refusals(whole, evaluate_refusals(all_calls, all_refused), suffering)

    def _mode_words(self) -> list[str]:
        modes = self._gateway.degraded.snapshot()
        return mode_words(modes.degraded_routes(), is_gateway=modes.is_degraded)

    async def summary(self) -> HealthSummary:
        verdicts = await self.judged(self.groups(), CooperativePauses(self._clock))
        whole = self.summed_up(verdicts)
        found = Counter(verdict.health for verdict in verdicts.values())
        return HealthSummary(
            whole.health,
            list(whole.why),
            {state: Counted(found[state], found[state] / max(1, len(verdicts))) for state in get_args(HealthState)},
            _with(verdicts, "unhealthy"),
            _with(verdicts, "degraded"),
            self._gateway.degraded.snapshot().degraded_routes(),
            _with(verdicts, "failed"),
        )

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(await self.summary())

    async def _ready(self, asked: AdminRequest) -> AdminResponse:
        """Returns 503 only while draining. An outage of the providers does not count: another gateway would have the
        same ones. The reasons name models and upstreams, and need a token."""
        word, status = ("draining", 503) if self._gateway.is_leaving else ("ready", 200)
        lines = [word, *(await self._reasons() if asked.caller is not None else ())]
        return AdminResponse("".join(f"{line}\n" for line in lines).encode(errors="replace"), TEXT, status)

    async def _reasons(self) -> list[str]:
        """Returns cached reasons: /readyz may be polled at any rate, and not each time are all deployments
        evaluated."""
        now = self._clock.now()
        if now - self._looked_at >= _REASONS_KEPT_S:
            self._looked_at = now
            verdicts = await self.judged(self.groups(), CooperativePauses(self._clock))
            why = [f"{label}: {'; '.join(verdict.why)}" for label, verdict in verdicts.items() if verdict.why]
            more = [f"and {len(why) - _REASONS} more"] if len(why) > _REASONS else []
            health = self.summed_up(verdicts).health
            self._known_reasons = [f"health: {health}", *self._mode_words(), *why[:_REASONS], *more]
        return self._known_reasons

    def _signs(self, label: str, group: Group, rests: Mapping[CooldownKey, float], now: float) -> HealthSignals:
        lately, hold = self._history.deployment(label).tally, self.hold(label)
        budget = self._settings
        return HealthSignals(
            worst(deployment.breaker.state for deployment in group),
            worst(deployment.host.state for deployment in group),
            lately.judged,
            lately.judged - lately.ok,
            _slowest(deployment.latency.quantile(0.95, now) for deployment in group) if budget.p95 else None,
            _slowest(deployment.first_tokens.quantile(0.95, now) for deployment in group)
            if budget.first_token_p95
            else None,
            max(_held_s(deployment, now) for deployment in group),
            _longest(_of_credential, group, rests),
            _longest(_of_quota, group, rests),
            _longest(_of_itself, group, rests),
            None if hold is None else f"{hold.kind} by an operator",
            next((why for deployment in group if (why := self._prober.why_down(deployment)) is not None), None),
            self._prober.why_failed(group[0].upstream.name),
            lately.calls,
            lately.refused_by,
        )


def worst(states: Iterable[BreakerState]) -> BreakerState:
    """Returns the worst of several breakers that are shown as one; `states` must not be empty."""
    return min(states, key=WORST_FIRST.index)


def _with(verdicts: Mapping[str, HealthVerdict], health: HealthState) -> list[str]:
    return [label for label, verdict in verdicts.items() if verdict.health == health]


def _slowest(quantiles_s: Iterable[float | None]) -> float | None:
    return max((quantile_s for quantile_s in quantiles_s if quantile_s is not None), default=None)


def _held_s(deployment: Deployment, now: float) -> float:
    """Returns the seconds until a gate is free, 0 if any account's gate is: another account's pause is not the
    deployment's."""
    shortest_s = float("inf")
    for gate in deployment.gates.all():
        held_until = gate.snapshot(now).held_until
        if held_until is None or held_until <= now:
            return 0.0
        shortest_s = min(shortest_s, held_until - now)
    return shortest_s if shortest_s < float("inf") else 0.0


def _longest(
    key_of: Callable[[Deployment, CooldownKey], CooldownKey], group: Group, rests: Mapping[CooldownKey, float]
) -> float:
    """Returns the longest cooldown of the upstreams' own keys. Those of callers' keys affect single callers and are
    left out. An upstream with several keys is out only as long as all of them are."""
    if not rests:
        return 0.0
    own = ((deployment, deployment.upstream.own_credentials()) for deployment in group)
    rests_s = (min(rests.get(key_of(deployment, key), 0.0) for key in keys) for deployment, keys in own if keys)
    return max(rests_s, default=0.0)


def _of_credential(_deployment: Deployment, credential: CooldownKey) -> CooldownKey:
    return credential


def _of_quota(deployment: Deployment, credential: CooldownKey) -> CooldownKey:
    return ("quota", *credential[1:], deployment.model or "")


def _of_itself(deployment: Deployment, credential: CooldownKey) -> CooldownKey:
    return ("deployment", *credential[1:], deployment.model or "")


async def _alive(_asked: AdminRequest) -> AdminResponse:
    return AdminResponse(b"ok\n", TEXT)
