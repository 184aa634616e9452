"""Computes the findings of each alert rule and subject from the gateway's numbers, once a second.

`resilience.alerts.rules` decides what is alarming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from llm_guard.admin.alerting.engine_signals import EngineSignals
from llm_guard.config import AlertRules
from llm_guard.outcome import FailureKind, RefusedBy, Signal
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.telemetry.recorder import CallCounters, DeploymentCounts, ModelCounts
from llm_guard.resilience.alerts.alert import QUIET_S, RuleFinding
from llm_guard.resilience.alerts.baseline import Gains, Trend
from llm_guard.resilience.alerts.rules import (
    FAILING,
    SPIKE_S,
    CallsRefusedSettings,
    FailureSpikeSettings,
    LatencySettings,
    RuleName,
    evaluate_breaker,
    evaluate_budget,
    evaluate_credential,
    evaluate_failures,
    evaluate_file,
    evaluate_lag,
    evaluate_latency,
    evaluate_refusals,
    evaluate_reload,
    evaluate_success,
)
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.retry.limits import RetryBudget
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import NO_ALIAS

SubjectFinding = tuple[RuleName, str, RuleFinding]
"""Rule, subject, and what was found."""

GATEWAY = "gateway"
CONFIG = "config"

_FAILURES = frozenset(
    kind.label for kind in FailureKind if kind.signal is Signal.UNHEALTHY or kind is FailureKind.RATE_LIMIT
)
"""Failures that a client alone cannot cause: those that count against a breaker, and rate limits."""

_REFUSED_BY: tuple[RefusedBy, ...] = ("breaker", "limit", "cooldown", "deadline")
"""Refusals that count. A hold is left out: it is an operator's decision, and shown as such."""
_NONE_REFUSED = [0] * len(_REFUSED_BY)


class AlertSignals:
    """Computes findings on each look; keeps only baselines between looks."""

    def __init__(
        self,
        rules: AlertRules,
        gateway: Handler,
        counters: CallCounters,
        engines: EngineSignals,
        lag_s: Callable[[], float],
        is_reload_good: Callable[[], bool],
        file_problems: Callable[[], Mapping[str, str | None]] = dict,
        credential_problems: Callable[[], Mapping[str, str | None]] = dict,
    ) -> None:
        """`lag_s`: seconds by which the last look of the watch came late."""
        self._gateway = gateway
        self._counters = counters
        self._engines = engines
        self._lag_s = lag_s
        self._is_reload_good = is_reload_good
        self._file_problems = file_problems
        self._credential_problems = credential_problems
        self._longest_lag_s = 0.0
        self._models: dict[str, _Model] = {}
        self._failures: dict[str, Trend] = {}
        self._changes: dict[Breaker, int] = {}
        self.adopt(rules)

    def adopt(self, rules: AlertRules) -> None:
        """Applies new rules; keeps the values seen so far."""
        self.rules = rules
        self._latency = rules.latency or LatencySettings()
        self._spike = rules.failure_spike or FailureSpikeSettings()
        self._refused = rules.calls_refused or CallsRefusedSettings()
        for model in self._models.values():
            model.adopt(self._latency, self._refused)
        for trend in self._failures.values():
            trend.memory_s = self._spike.memory

    def note_lag(self) -> None:
        """Records the lag. Must be called at each look of the watch: only one of them sees a stall of half a second."""
        self._longest_lag_s = max(self._longest_lag_s, self._lag_s())

    def look(self, now: float) -> Iterator[SubjectFinding]:
        """Yields the findings of all rules that are on."""
        by_label: dict[str, list[Deployment]] = {}
        for deployment in self._gateway.deployments():
            by_label.setdefault(deployment.label, []).append(deployment)
        yield from self._calls(now)
        yield from self._attempts(now)
        yield from self._breakers(by_label, now)
        yield from self._budgets(by_label, now)
        yield from self._credentials(by_label, now)
        yield from self._engines.look(self.rules, now)
        yield from self._own()

    def _calls(self, now: float) -> Iterator[SubjectFinding]:
        for label, counts in self._counters.models.items():
            model = self._models.get(label)
            if model is None:
                model = self._models[label] = _Model(self._latency, self._refused, now)
            outcomes = model.success.new_outcomes(counts, now)
            if self.rules.success_rate is not None and outcomes is not None:
                yield from _known("success_rate", label, evaluate_success(label, outcomes, self.rules.success_rate))
            calls, refused, over_s = model.refusals(counts, self._refused.min_calls, now)
            if self.rules.calls_refused is not None and counts.refusals:  # most models have no refusals at all
                yield "calls_refused", label, evaluate_refusals(label, calls, refused, self._refused, over_s)
            for what, trend in model.latencies(counts, now):
                if self.rules.latency is not None and label != NO_ALIAS:  # none without a model: a list, or a 1 GB file
                    finding = evaluate_latency(label, what, trend.recent, trend.usual, self.rules.latency)
                    yield from _known("latency", f"{label} ({what})", finding)

    def _attempts(self, now: float) -> Iterator[SubjectFinding]:
        for label, counts in self._counters.deployments.items():
            trend = self._failures.get(label)
            if trend is None:
                trend = self._failures[label] = Trend(SPIKE_S, self._spike.memory)
                trend.note(0.0, now, now)  # an outage counts even if it begins with the first attempt
            trend.note(_failures(counts), now, now)
            if self.rules.failure_spike is not None:
                yield "failure_spike", label, evaluate_failures(label, trend.recent, trend.usual, self._spike)

    def _breakers(self, by_label: dict[str, list[Deployment]], now: float) -> Iterator[SubjectFinding]:
        if self.rules.breaker_open is None:
            self._changes = {}
            return
        subjects = {label: [deployment.breaker for deployment in group] for label, group in by_label.items()}
        hosts = {deployment.upstream.name: deployment.host for group in by_label.values() for deployment in group}
        subjects.update({f"{name} (host)": [host] for name, host in hosts.items()})
        changes: dict[Breaker, int] = {}
        for subject, breakers in subjects.items():
            has_opened = False
            for breaker in breakers:
                seen = changes[breaker] = breaker.history.changes
                has_opened |= _has_opened(breaker, seen - self._changes.get(breaker, seen))
            shut = [breaker for breaker in breakers if breaker.state in ("open", "half_open")]
            why = shut[0].snapshot(now).why if shut else None
            yield "breaker_open", subject, evaluate_breaker(subject, len(shut), len(breakers), has_opened, why)
        self._changes = changes

    def _budgets(self, by_label: dict[str, list[Deployment]], now: float) -> Iterator[SubjectFinding]:
        if self.rules.budget_exhausted is None:
            return
        budgets = {label: [deployment.budget for deployment in group] for label, group in by_label.items()}
        for alias, budget in self._gateway.table.pool.budgets.items():
            budgets[f"{alias} (model)"] = [budget]
        for subject, group in budgets.items():
            wanted = [budget for budget in group if budget.settings.ratio or budget.settings.min_per_second]
            if wanted:  # else retries are off
                tokens, share = min((_state(budget, now) for budget in wanted), key=_distress)
                yield "budget_exhausted", subject, evaluate_budget(subject, tokens, share)

    def _credentials(self, by_label: dict[str, list[Deployment]], now: float) -> Iterator[SubjectFinding]:
        """Yields findings of upstreams that have keys of their own. Callers' keys are the callers' responsibility."""
        if self.rules.credential_cooldown is None:
            return
        upstreams = {
            deployment.upstream.name: deployment.upstream for group in by_label.values() for deployment in group
        }
        ours = {
            key[1:4]: (name, whose)
            for name, upstream in upstreams.items()
            for key, whose in upstream.own_credentials().items()
        }
        rests: dict[str, tuple[float, str, str]] = {name: (0.0, "", "") for name, _ in ours.values()}
        cooldowns = self._gateway.cooldowns
        for key, cooldown in cooldowns.snapshot(now).items():
            if key[0] in ("credential", "quota") and (owner := ours.get(key[1:4])) is not None:
                name, whose = owner
                rests[name] = max(rests[name], (cooldown.until - now, cooldown.failure.kind.category, whose))
        problems = self._credential_problems()
        for name, (rest_s, category, whose) in rests.items():
            finding = evaluate_credential(name, rest_s, category, whose, problems.get(name))
            yield "credential_cooldown", name, finding

    def _own(self) -> Iterator[SubjectFinding]:
        if self.rules.reload_failed is not None:
            yield "reload_failed", CONFIG, evaluate_reload(self._is_reload_good())
            for what, problem in self._file_problems().items():
                yield "reload_failed", what, evaluate_file(what, problem)
        if self.rules.loop_lag is not None:
            yield "loop_lag", GATEWAY, evaluate_lag(self._longest_lag_s, self.rules.loop_lag)
        self._longest_lag_s = 0.0


class _Model:
    """State of the calls with one `model` label."""

    __slots__ = ("_ended", "_first_tokens", "_whole", "success")

    def __init__(self, settings: LatencySettings, refused: CallsRefusedSettings, now: float) -> None:
        self.success = _Success()
        self._ended = Gains(refused.over, (0, *_NONE_REFUSED), now)
        self._first_tokens = Trend(settings.over, settings.memory)
        self._whole = Trend(settings.over, settings.memory)

    def adopt(self, settings: LatencySettings, refused: CallsRefusedSettings) -> None:
        self._ended.over_s = refused.over
        for trend in (self._first_tokens, self._whole):
            trend.over_s, trend.memory_s = settings.over, settings.memory

    def refusals(self, counts: ModelCounts, min_calls: int, now: float) -> tuple[int, dict[str, int], float]:
        """Returns the recently ended calls, how many of them the gateway refused, by reason, and the seconds in which
        they ended: longer than `over` of the settings if `min_calls` refusals take longer."""
        refusals = counts.refusals
        refused = [refusals.get(by, 0) for by in _REFUSED_BY] if refusals else _NONE_REFUSED
        total = (sum(counts.calls.values()), *refused)
        (calls, *gained), over_s = self._ended.note(total, now, lambda gains: 0 < sum(gains[1:]) < min_calls)
        return calls, dict(zip(_REFUSED_BY, gained, strict=True)), over_s

    def latencies(self, counts: ModelCounts, now: float) -> Iterator[tuple[str, Trend]]:
        """Yields the latency trends. Streams are judged by their first token, as their duration depends on their
        length."""
        first = counts.time_to_first_token
        self._first_tokens.note(first.sum, sum(first.counts), now)
        yield "first token", self._first_tokens
        self._whole.note(counts.answered_s, counts.answered, now)
        yield "whole answer", self._whole


class _Success:
    """Selects the outcomes that describe the present: after a long silence only the calls since then."""

    __slots__ = ("_begin", "_heard_at", "_judged")

    def __init__(self) -> None:
        self._begin = 0
        self._judged = 0
        self._heard_at = 0.0

    def new_outcomes(self, counts: ModelCounts, now: float) -> Sequence[bool] | None:
        """Returns the outcomes, None if there are none since the last look."""
        if counts.judged == self._judged:
            return None
        if now - self._heard_at >= QUIET_S:
            self._begin = self._judged
        self._judged, self._heard_at = counts.judged, now
        kept = len(counts.recent)
        return tuple(islice(counts.recent, max(0, kept - (counts.judged - self._begin)), None))


def _known(rule: RuleName, subject: str, finding: RuleFinding | None) -> Iterator[SubjectFinding]:
    if finding is not None:
        yield rule, subject, finding


def _failures(counts: DeploymentCounts) -> int:
    return sum(count for outcome, count in counts.attempts.items() if outcome in _FAILURES)


def _has_opened(breaker: Breaker, changes: int) -> bool:
    return changes > 0 and any(transition.after == "open" for transition in breaker.history.latest()[-changes:])


def _state(budget: RetryBudget, now: float) -> tuple[float, float]:
    """Returns the tokens, and the share of failures."""
    return budget.snapshot(now).tokens, budget.recent.failure_share(now)


def _distress(state: tuple[float, float]) -> tuple[bool, float]:
    """Sort key of budgets: the worst one is the smallest, an empty one that is in demand."""
    tokens, failure_share = state
    return failure_share < FAILING, tokens
