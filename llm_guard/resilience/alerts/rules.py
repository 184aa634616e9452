"""Alert rules: their settings, and what each finds about one subject.

The numbers come from `admin.alerting.signals`; `resilience.alerts.alert` decides when an alert fires.

Each rule fires at one threshold and resolves at another, so that a value that varies around the first is one alert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from llm_guard.resilience.alerts.alert import RuleFinding, RuleSettings, RuleVerdict, Severity
from llm_guard.resilience.alerts.baseline import Mean
from llm_guard.resilience.units import Count, Factor, Pause, Rate, Ratio, Seconds

RuleName = Literal[
    "success_rate", "latency", "calls_refused", "breaker_open", "failure_spike", "budget_exhausted",
    "credential_cooldown", "engine_gave_up", "engine_down", "engines_down", "engine_restarts", "reload_failed",
    "loop_lag",
]  # fmt: skip
RULES: tuple[RuleName, ...] = get_args(RuleName)

SPIKE_S = 60.0
"""Seconds over which a failure rate is measured."""
_SETTLED_S = 600.0
"""While less than this is known of the usual rate, the rest is assumed to be free of failures."""
FAILING = 0.01
"""Least share of failures at which there are calls to retry."""
_MOST_NAMED = 5
"""Engines that a summary names."""


@dataclass(frozen=True, slots=True)
class SuccessRateSettings(RuleSettings):
    """Success rate of a model's last hundred calls."""

    severity: Severity = "critical"
    below: Ratio = 0.95
    """Success rate below which it fires."""
    min_calls: Count = 20
    """Calls that are needed to evaluate the rule."""
    models: Mapping[str, Ratio] = field(default_factory=dict)
    """Another `below` for some models; 0: no alert."""


@dataclass(frozen=True, slots=True)
class LatencySettings(RuleSettings):
    """Latency of a model: for streams the time to the first token, for all others to the whole response."""

    for_: Pause = 30.0
    rise: Rate = 0.5
    """Allowed excess of the mean over the usual, as a share of it: 0.5 is half as much again."""
    over: Seconds = 300.0
    """Period of the recent mean."""
    memory: Seconds = 14_400.0
    """How far the usual reaches back, as a time constant."""
    min_calls: Count = 50
    """Responses needed in `over`, and before it. The mean of fewer is left to chance: they differ in length tenfold."""
    models: Mapping[str, Rate] = field(default_factory=dict)
    """Another `rise` for some models."""


@dataclass(frozen=True, slots=True)
class CallsRefusedSettings(RuleSettings):
    """Calls of a model that the gateway itself refused, by a breaker, a limit, a cooldown or the deadline."""

    share: Ratio = 0.5
    """Share of the model's calls at which it fires."""
    min_calls: Count = 10
    """Least number of refused calls in `over`; in up to a minute for a model with fewer calls."""
    over: Seconds = 10.0
    """Period in which calls are counted."""


@dataclass(frozen=True, slots=True)
class BreakerOpenSettings(RuleSettings):
    severity: Severity = "info"
    resolve_after: Pause = 30.0


@dataclass(frozen=True, slots=True)
class FailureSpikeSettings(RuleSettings):
    """Failures of a deployment's attempts."""

    factor: Factor = 3.0
    """Multiple of the usual number of failures at which it fires."""
    min_failures: Count = 20
    """Least number of failures in a minute."""
    memory: Seconds = 3600.0
    """How far the usual number reaches back, as a time constant."""


@dataclass(frozen=True, slots=True)
class BudgetExhaustedSettings(RuleSettings):
    for_: Pause = 10.0


@dataclass(frozen=True, slots=True)
class CredentialCooldownSettings(RuleSettings):
    resolve_after: Pause = 300.0
    """Longer than a cooldown: if another one follows right after, that is the same alert."""


@dataclass(frozen=True, slots=True)
class EngineGaveUpSettings(RuleSettings):
    severity: Severity = "critical"
    resolve_after: Pause = 0.0


@dataclass(frozen=True, slots=True)
class EngineDownSettings(RuleSettings):
    """One engine that is meant to run and does not."""

    severity: Severity = "critical"
    for_: Pause = 3600.0
    resolve_after: Pause = 0.0


@dataclass(frozen=True, slots=True)
class EnginesDownSettings(RuleSettings):
    """Share of all engines that are meant to run and do not."""

    severity: Severity = "critical"
    for_: Pause = 300.0
    above: Ratio = 0.01
    """Share of the engines above which it fires."""


@dataclass(frozen=True, slots=True)
class EngineRestartsSettings(RuleSettings):
    """Automatic restarts of all engines together."""

    max_per_minute: Count = 5
    """Restarts within a minute above which it fires."""


@dataclass(frozen=True, slots=True)
class ReloadFailedSettings(RuleSettings):
    resolve_after: Pause = 0.0


@dataclass(frozen=True, slots=True)
class LoopLagSettings(RuleSettings):
    above: Seconds = 0.5
    """Seconds for which the event loop was blocked."""


def evaluate_success(model: str, outcomes: Sequence[bool], settings: SuccessRateSettings) -> RuleFinding | None:
    """Evaluates `outcomes`: whether each of the last calls succeeded. It resolves a fifth of the way from the threshold
    to 1."""
    if len(outcomes) < settings.min_calls:
        return None
    below = settings.models.get(model, settings.below)
    share = sum(outcomes) / len(outcomes)
    verdict = _verdict(share < below, share >= below + (1 - below) / 5)
    summary = f"{model}: {percent(share)} of the last {len(outcomes)} calls succeeded (threshold {percent(below)})"
    return RuleFinding(verdict, share, below, summary)


def evaluate_latency(model: str, what: str, recent: Mean, usual: Mean, settings: LatencySettings) -> RuleFinding | None:
    """Compares means in seconds; it resolves halfway back to the usual. `what`: name of the measured duration."""
    if min(recent.weight, usual.weight) < settings.min_calls or usual.value <= 0:
        return None
    rise = settings.models.get(model, settings.rise)
    threshold = usual.value * (1 + rise)
    verdict = _verdict(recent.value > threshold, recent.value <= usual.value * (1 + rise / 2))
    summary = (
        f"{model}: {what} takes {seconds(recent.value)} on average over {seconds(settings.over)}, "
        f"usually {seconds(usual.value)} (threshold {seconds(threshold)})"
    )
    return RuleFinding(verdict, recent.value, threshold, summary)


def evaluate_refusals(
    model: str, calls: int, refused: Mapping[str, int], settings: CallsRefusedSettings, over_s: float
) -> RuleFinding:
    """Evaluates refused calls. `calls`: all that ended within `over_s`; `refused`: those of them that the gateway
    refused, by cause. It resolves at half of the share; a model without calls has none refused."""
    count = sum(refused.values())
    found = count / calls if calls else 0.0
    verdict = _verdict(count >= settings.min_calls and found >= settings.share, found <= settings.share / 2)
    most_first = sorted(refused.items(), key=lambda pair: -pair[1])
    by = ", ".join(f"{number} by {name}" for name, number in most_first if number)
    summary = (
        f"{model}: the gateway refused {count} of {calls} calls within {seconds(over_s)}"
        f"{f': {by}' if by else ''} (threshold {percent(settings.share)})"
    )
    return RuleFinding(verdict, found, settings.share, summary)


def evaluate_breaker(
    subject: str, open_count: int, count: int, has_opened: bool, why: str | None = None
) -> RuleFinding:
    """Evaluates breakers. `has_opened`: one did since the last evaluation, though it may be closed again. `why`: the
    rule that opened it, with its figures."""
    if open_count:
        are = "is" if open_count == 1 else "are"
        state = "its breaker is open" if count == 1 else f"{open_count} of its {count} breakers {are} open"
    elif has_opened:
        state = "its breaker opened and closed again"
    else:
        state = "its breaker is closed" if count == 1 else f"its {count} breakers are closed"
    because = f" ({why})" if why and open_count else ""
    return RuleFinding(_verdict(open_count > 0 or has_opened, True), open_count, 1.0, f"{subject}: {state}{because}")


def evaluate_failures(subject: str, recent: Mean, usual: Mean, settings: FailureSpikeSettings) -> RuleFinding:
    """Compares failures a second with the usual; it resolves at half of the threshold."""
    usual_rate = usual.total / max(usual.weight, _SETTLED_S)
    threshold = max(settings.factor * usual_rate, settings.min_failures / SPIKE_S)
    rate = recent.total / SPIKE_S
    verdict = _verdict(rate >= threshold, rate <= threshold / 2)
    summary = (
        f"{subject}: {rate:.3g} failures per second in the last minute, usually {usual_rate:.3g} "
        f"(threshold {threshold:.3g})"
    )
    return RuleFinding(verdict, rate, threshold, summary)


def evaluate_budget(subject: str, tokens: float, failure_share: float) -> RuleFinding:
    """Evaluates a retry budget: it is exhausted if no retry is left while attempts fail. `failure_share` decays without
    attempts."""
    is_out = tokens < 1 and failure_share >= FAILING
    state = "no retry is left" if is_out else "retries are available, or not needed"
    summary = f"{subject}: {state}, {percent(failure_share)} of the recent attempts failed"
    return RuleFinding(_verdict(is_out, True), tokens, 1.0, summary)


def evaluate_credential(
    upstream: str, rest_s: float, category: str, key: str = "", problem: str | None = None
) -> RuleFinding:
    """Evaluates a credential. `rest_s`: seconds left of its cooldown, 0: none; `category`: of the refusal; `key`: name
    of the key, if the upstream has several; `problem`: why credentials of a cloud could not be renewed."""
    name = f"key {key}" if key else "key"
    if rest_s > 0:
        state = f"its {name} was refused ({category}) and is in cooldown"
    elif problem is not None:
        state = f"its credentials could not be renewed ({problem}); calls fail once the last ones have expired"
    else:
        state = "its key is in use"
    return RuleFinding(_verdict(rest_s > 0 or problem is not None, True), rest_s, 0.0, f"{upstream}: {state}")


def evaluate_engine(engine: str, has_given_up: bool) -> RuleFinding:
    state = "could not be restarted, and was given up" if has_given_up else "is no longer given up"
    return RuleFinding(_verdict(has_given_up, True), float(has_given_up), 1.0, f"{engine} {state}")


def evaluate_down(engine: str, problem: str | None) -> RuleFinding:
    """Evaluates an engine that is meant to run; `problem` None: it runs."""
    state = "is up" if problem is None else f"is down ({problem})"
    return RuleFinding(_verdict(problem is not None, True), float(problem is not None), 1.0, f"{engine} {state}")


def evaluate_engines(down: Sequence[str], count: int, settings: EnginesDownSettings) -> RuleFinding:
    """Evaluates the engines that are down, of `count` in all. It resolves at the threshold: the share of a few engines
    has large steps."""
    share = len(down) / count if count else 0.0
    which = f": {_listed(down)}" if down else ""
    summary = f"{len(down)} of {count} engines are down{which} (threshold {percent(settings.above)})"
    return RuleFinding(_verdict(share > settings.above, True), share, settings.above, summary)


def evaluate_restarts(restarts: Mapping[str, int], settings: EngineRestartsSettings) -> RuleFinding:
    """Evaluates the automatic restarts of the last minute, by engine. It resolves at half of the threshold."""
    count, most = sum(restarts.values()), settings.max_per_minute
    by_count = sorted(restarts, key=lambda engine: -restarts[engine])
    which = f": {_listed([f'{restarts[engine]} of {engine}' for engine in by_count])}" if count else ""
    summary = f"engines were restarted automatically {count} times within a minute{which} (threshold {most})"
    return RuleFinding(_verdict(count > most, count <= most / 2), count, most, summary)


def evaluate_reload(is_good: bool) -> RuleFinding:
    state = (
        "the config file was applied" if is_good else "the config file was rejected; the previous config stays in use"
    )
    return RuleFinding(_verdict(not is_good, True), float(not is_good), 1.0, state)


def evaluate_file(what: str, problem: str | None) -> RuleFinding:
    """Evaluates a file with a key or certificates that the config names; `problem` None: its content is in use."""
    state = "its files are in use" if problem is None else f"{problem}; the last valid version stays in use"
    return RuleFinding(_verdict(problem is not None, True), float(problem is not None), 1.0, f"{what}: {state}")


def evaluate_lag(lag_s: float, settings: LoopLagSettings) -> RuleFinding:
    """Evaluates the event loop's lag; it resolves below half of the threshold."""
    summary = f"the event loop was blocked for {seconds(lag_s)} (threshold {seconds(settings.above)})"
    return RuleFinding(_verdict(lag_s > settings.above, lag_s <= settings.above / 2), lag_s, settings.above, summary)


def _listed(names: Sequence[str]) -> str:
    """Joins the first names, and says how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def percent(share: float) -> str:
    """Formats a share as in `97.5 %`."""
    return f"{100 * share:.3g} %"


def seconds(duration_s: float) -> str:
    """Formats a duration as in `850 ms`, `2.5 s`, `5 min`."""
    if duration_s < 1:
        return f"{1000 * duration_s:.3g} ms"
    return f"{duration_s:.3g} s" if duration_s < 120 else f"{duration_s / 60:.3g} min"


def _verdict(is_bad: bool, is_good: bool) -> RuleVerdict:
    """Returns the verdict; `is_bad` takes precedence."""
    if is_bad:
        return "bad"
    return "good" if is_good else "between"
