"""What limits the retries of calls: whether one may be sent twice, and the budget of all.

A model call is safe to repeat: its only double effect is its cost (Google's rule for generateContent). Creating files,
batches or fine-tuning jobs is not, nor is a call that leaves state at the provider. A budget bounds how many retries a
stream of calls may cost, so that retries do not multiply the load of an outage. The attempt loop decides which outcomes
are noted: those that are evidence about the upstream, and rate limits. Whether and when to retry is decided in
`resilience.retry.decision` and `resilience.retry.backoff`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1, inf

from llm_guard.outcome import Failure
from llm_guard.resilience.retry.retry_yield import RetryYield
from llm_guard.resilience.units import Rate, Ratio

MEMORY = 40
"""About this many of the newest attempts decide; older ones weigh less and less."""
FADE_S = 15.0
"""Time constant with which attempts lose their weight: a minute without attempts leaves little of any share."""

# Fewer attempts than this mean little: the missing ones are assumed to be successes.
_FEW = 10
_KEPT = 1 - 1 / MEMORY
# Attempts within this time are treated as simultaneous: `exp` costs as much as everything else.
_FADE_EACH_S = 0.1


@dataclass(frozen=True, slots=True)
class FailureRateSnapshot:
    failure_share: float
    """0 to 1."""
    attempts: float
    """Weight of the evidence, in attempts; at most `MEMORY`."""


class FailureRate:
    """An exponentially weighted mean over attempts and over time.

    It begins at 0, rises by at most a tenth with each failure, and decays to 0 without attempts, so that a deployment
    is not judged by failures of a minute ago.
    """

    __slots__ = ("_attempts", "_failures", "_noted_at")

    def __init__(self, now: float) -> None:
        self._attempts = 0.0
        self._failures = 0.0
        self._noted_at = now

    def note(self, is_failure: bool, now: float) -> None:
        """Notes the end of an attempt, or the beginning of its response."""
        kept = _KEPT
        if now - self._noted_at > _FADE_EACH_S:
            kept *= self._faded(now)
            self._noted_at = now
        self._attempts = self._attempts * kept + 1.0
        if is_failure or self._failures:
            self._failures = self._failures * kept + is_failure

    def take_back(self, now: float) -> None:
        """Turns a success into a failure."""
        faded = self._faded(now)
        self._attempts *= faded
        self._failures = min(self._attempts, self._failures * faded + 1.0)
        self._noted_at = now

    def failure_share(self, now: float) -> float:
        """Returns the share of failures, 0 to 1; 0 if nothing is known."""
        if not self._failures:
            return 0.0
        faded = self._faded(now)
        return self._failures * faded / max(_FEW, self._attempts * faded)

    def snapshot(self, now: float) -> FailureRateSnapshot:
        return FailureRateSnapshot(self.failure_share(now), self._attempts * self._faded(now))

    def _faded(self, now: float) -> float:
        return exp((self._noted_at - now) / FADE_S)


MEMORY_S = 10.0
"""How long saved tokens last, as in finagle's `RetryBudget` (ttl 10 s)."""

_RATIO_S = 0.5
_UPDATE_EACH_S = 0.005
# A refill computed in floats may end slightly below a whole token.
_ONE = 1.0 - 1e-9

# Success rate of retries, relative to that of first attempts. From the first value on failures are random, and each
# retry has its chance; below the second requests fail by their content, and retries are wasted.
_RANDOM = 0.5
_WASTED = 0.1
# If fewer attempts than this succeed at all, retries mostly add load to an outage.
_LEAST_SUCCESS = 0.05


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """`ratio`: retries per call, 0 to 1. `min_per_second`: retries a second that are always allowed, >= 0.

    With `adaptive` the ratio follows what retries achieve: `max_ratio` (>= 0) if they succeed at least half as often
    as first attempts, `ratio` if they succeed less than a tenth as often, and less than that if nearly nothing
    succeeds. A `ratio` of 0 stays 0.
    """

    ratio: Ratio = 0.2
    """Retries per call."""
    min_per_second: Rate = 10.0
    """Retries per second that are allowed in any case."""
    adaptive: bool = True
    """True: more than `ratio` while retries succeed as often as first attempts, less while nothing succeeds."""
    max_ratio: Rate = 3.0
    """Upper bound of the adaptive ratio."""

    def effective_ratio(self, relative_yield: float, success_share: float) -> float:
        """Tokens that a call adds. `relative_yield`: success rate of retries, relative to that of first attempts;
        `success_share`: success rate of all attempts. Both from 0 to 1."""
        if not self.adaptive or self.ratio == 0:
            return self.ratio
        least = min(self.ratio, self.max_ratio)
        curable = min(1.0, max(0.0, (relative_yield - _WASTED) / (_RANDOM - _WASTED)))
        return (least + (self.max_ratio - least) * curable) * min(1.0, success_share / _LEAST_SUCCESS)


@dataclass(frozen=True, slots=True)
class RetryBudgetSnapshot:
    tokens: float
    """Retries that could be made at once."""
    calls: int
    spent: int
    """Both counted since the start."""
    ratio: float
    """Tokens that a call adds now."""


class RetryBudget:
    """A token bucket after finagle's `RetryBudget`: a call adds `ratio` tokens, a retry or a hedge takes one.

    `min_per_second` is a floor, not a surcharge: it flows while calls add less than that, so 10,000 failing calls cost
    at most 2,000 retries plus the reserve, however long they take. The floor fills up to a reserve of ten seconds'
    worth; tokens beyond the reserve decay with a time constant of ten seconds. Finagle keeps ten slots and drops the
    oldest; the decay needs one number and refills evenly. If calls add more than `ratio`, savings decay faster in
    proportion, so that no more is saved for the moment when a healthy deployment dies. Gateways of a fleet have one
    floor together. `note` must be called with each attempt; `settings` may be replaced at any moment.
    """

    __slots__ = (
        "_brought", "_calls", "_first_ok", "_floor", "_floor_since_call", "_haste", "_ratio_until", "_reserve",
        "_settings", "_spent", "_tokens", "_updated_at", "_yield", "gateways", "recent",
    )  # fmt: skip

    def __init__(self, settings: BudgetSettings, now: float) -> None:
        self.recent = FailureRate(now)
        self._yield = RetryYield(now)
        self._first_ok = 0
        """First attempts that have succeeded since the last other attempt, and are not in `_yield` yet."""
        self._brought = 0.0
        self._ratio_until = now
        self.gateways = 1
        """Gateways that divide the floor."""
        self.settings = settings
        self._tokens = self._reserve
        self._updated_at = now
        self._floor_since_call = 0.0
        self._calls = 0
        self._spent = 0

    @property
    def settings(self) -> BudgetSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: BudgetSettings) -> None:
        self._settings = settings
        self._divide_floor()
        self._haste = self._new_haste()
        self._ratio_until = -inf

    def share(self, gateways: int) -> None:
        """Divides the floor among so many gateways, at least 1."""
        if gateways != self.gateways:
            self.gateways = gateways
            self._divide_floor()

    def note(self, is_failure: bool, now: float, *, is_retry: bool) -> None:
        """Notes the end of an attempt, or the beginning of its response."""
        self.recent.note(is_failure, now)
        if is_failure or is_retry:
            self._note_first_ok(now)
            self._yield.note(is_failure, now, is_retry=is_retry)
            self._ratio_until = now
        else:
            self._first_ok += 1

    def deposit(self, now: float) -> None:
        """Adds a call's tokens, when it begins."""
        # Savings decay slowly: above the reserve, where healthy traffic is, an occasional update is enough.
        if self._tokens <= self._reserve or now - self._updated_at > _UPDATE_EACH_S:
            self._update(now)
        if now >= self._ratio_until:
            self._renew_ratio(now)
        ratio = self._brought
        if ratio > self._floor_since_call:
            self._tokens += ratio - self._floor_since_call
        self._floor_since_call = 0.0
        self._calls += 1

    def can_spend(self, now: float) -> bool:
        """Returns whether `try_spend` would succeed."""
        self._update(now)
        return self._tokens >= _ONE

    def try_spend(self, now: float) -> bool:
        """Takes the token of one retry, if there is one."""
        if not self.can_spend(now):
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        self._spent += 1
        return True

    @property
    def calls(self) -> int:
        """Calls since the start."""
        return self._calls

    def snapshot(self, now: float) -> RetryBudgetSnapshot:
        self._update(now)
        return RetryBudgetSnapshot(self._tokens, self._calls, self._spent, self._ratio(now))

    def _renew_ratio(self, now: float) -> None:
        """Updates the ratio, at most twice a second: while every call succeeds at once, it hardly changes."""
        self._ratio_until = now + _RATIO_S
        ratio = self._ratio(now)
        if ratio != self._brought:
            self._brought = ratio
            self._haste = self._new_haste()

    def _ratio(self, now: float) -> float:
        self._note_first_ok(now)
        return self._settings.effective_ratio(self._yield.relative(), self._yield.success_share())

    def _note_first_ok(self, now: float) -> None:
        if self._first_ok:
            self._yield.note_first_ok(self._first_ok, now)
            self._first_ok = 0

    def _update(self, now: float) -> None:
        passed_s = now - self._updated_at
        if passed_s <= 0:
            return
        self._updated_at = now
        above = self._tokens - self._reserve
        if above > 0:
            self._tokens += above * expm1(-passed_s / MEMORY_S * self._haste)
        else:
            refill = min(-above, self._floor * passed_s)
            self._tokens += refill
            self._floor_since_call += refill

    def _divide_floor(self) -> None:
        self._floor = self._settings.min_per_second / self.gateways
        # A floor below one retry in ten seconds still saves up for a whole one.
        self._reserve = max(1.0, self._floor * MEMORY_S) if self._floor > 0 else 0.0

    def _new_haste(self) -> float:
        """Returns the factor by which savings decay faster than usual."""
        ratio = self._settings.ratio
        return max(1.0, self._brought / ratio) if ratio > 0 else 1.0


def try_spend_all(budgets: Sequence[RetryBudget], now: float) -> bool:
    """Takes the token of one retry from each of several different budgets, or from none."""
    if not all(budget.can_spend(now) for budget in budgets):
        return False
    for budget in budgets:
        budget.try_spend(now)
    return True


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_STATELESS = {
    "/v1/chat/completions": True,
    "/v1/completions": True,
    "/v1/responses": True,
    "/v1/responses/input_tokens": True,
    "/v1/embeddings": True,
    "/v1/moderations": True,
    "/v1/rerank": True,
    "/v1/images/*": True,
    "/v1/audio/speech": True,
    "/v1/audio/transcriptions": True,
    "/v1/audio/translations": True,
    "/v1/messages": True,
    "/v1/messages/count_tokens": True,
    "/v1/complete": True,
    "*": False,
}
"""Repeatability of POST, PUT, PATCH and DELETE, by path; a repeated DELETE that was executed gets a 404."""

_AT_THE_DOOR = frozenset({
    "rate_limit", "overloaded", "quota_exhausted", "model_loading", "auth", "permission", "model_not_found",
    "not_found", "payload_too_large", "invalid_request", "context_length", "content_policy",
})  # fmt: skip
"""Categories of errors that mean that the request was not executed."""


class Repeatable:
    """Decides by method and path which calls may be repeated."""

    def __init__(self, overrides: Mapping[str, bool]) -> None:
        """`overrides`: paths, or their beginnings followed by `*`; they take precedence over the built-in ones."""
        self._overrides = overrides

    def allows(self, method: str, path: str, *, is_stateful: bool) -> bool:
        """Returns whether a call may be sent again although it may have been executed.

        `is_stateful`: its body makes the provider store it, or continues from stored state.
        """
        if self._overrides and (said := _longest_match(self._overrides, path)) is not None:
            return said
        if method in _SAFE_METHODS:
            return True
        return not is_stateful and bool(_longest_match(_STATELESS, path))


def may_have_executed(failure: Failure) -> bool:
    """Returns whether the provider may have executed the request although the call failed."""
    if failure.is_before_sending or failure.is_incomplete:
        return False
    if failure.is_after_head:
        return True
    category, answer = failure.kind.category, failure.answer
    is_unavailable = category == "server_error" and answer is not None and answer.status == 503
    return category not in _AT_THE_DOOR and not is_unavailable


def _longest_match(table: Mapping[str, bool], path: str) -> bool | None:
    if path in table:
        return table[path]
    patterns = [key for key in table if key.endswith("*") and path.startswith(key[:-1])]
    return table[max(patterns, key=len)] if patterns else None
