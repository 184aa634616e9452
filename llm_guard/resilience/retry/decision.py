"""Decision after a failed attempt: a retry on the same deployment, another deployment, or the end of the call.

Decides only; the inputs come from `resilience.classification.classify` (what failed), `resilience.retry.backoff`
(length of a wait), `resilience.retry.limits` (tokens) and `resilience.routing.candidates` (deployments left).
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.resilience.retry.limits import may_have_executed

_SLOW = frozenset({FailureKind.TIMEOUT, FailureKind.CONNECT_TIMEOUT})
"""After these the same deployment is retried only if no other is left."""
_BUSY = frozenset({FailureKind.RATE_LIMIT, FailureKind.OVERLOADED})
"""After these, deployments that have room are tried first, however short the wait."""
_MOMENT_S = 0.05
"""If a retry's wait is longer than this, an attempt on another deployment of the same model is quicker."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the same deployment again, after a wait in seconds, >= 0."""

    after_s: float
    is_hint: bool = False
    """True if the upstream requested the wait."""


@dataclass(frozen=True, slots=True)
class FallBack:
    """Try another deployment, now."""

    to_other_model: bool = False
    """True if it must be one of another model: every deployment of this model would give the same response."""
    back_after_s: float | None = None
    """After this wait the same deployment may be tried again, if no other has served the call; None: it may not."""
    is_hint: bool = False
    """True if the upstream requested that wait."""
    is_last: bool = False
    """True if the same deployment comes after those of other models too, not only after those of its own."""


@dataclass(frozen=True, slots=True)
class ChangeKey:
    """Try the same deployment at once, with another of its upstream's keys."""

    is_paid: bool = False
    """True if it takes a token of each retry budget."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the call with this failure as its response; `why` is a phrase for the log line."""

    why: str


Step = Retry | ChangeKey | FallBack | GiveUp


def next_step(
    failure: Failure,
    *,
    retries_done: int,
    settings: RetrySettings,
    previous_s: float | None,
    has_next: bool,
    has_peer: bool,
    has_free_peer: bool,
    has_free_same_model: bool,
    has_other_model: bool,
    fallback_at: float,
    is_repeatable: bool,
    has_timed_out_again: bool,
    can_spend: bool,
    failure_share: float,
    now: float,
    deadline_at: float,
    u: float,
) -> Step:
    """Decides what to do after `failure`, with `retries_done` retries of this deployment so far.

    `has_next`: another deployment can be tried, now or later; `has_peer`: one that may be preferred at once, as a rule
    one of the same model; `has_free_peer`: one of those has room now; `has_free_same_model`: one of the same model has
    room now; `has_other_model`: one of another model, which is preferred to a wait that ends after `fallback_at`.
    `is_repeatable`: the call may be sent again although it may have been executed. `has_timed_out_again`: providers
    have worked on it twice for longer than the default limits. `can_spend`: the retry budgets have a token.
    `previous_s`, `failure_share` and `u` as in `backoff.delay_s`. A wait always ends before `deadline_at`, and no kind
    is retried or sent elsewhere against its row in `outcome.FailureKind`.
    """
    kind = failure.kind
    is_for_other_model = kind.category in settings.fallback_on and has_other_model
    if kind.is_final and not is_for_other_model:
        return GiveUp("final error")
    if failure.limit == "total" or now >= deadline_at:
        return GiveUp("deadline")
    if not is_repeatable and may_have_executed(failure):
        return GiveUp("not idempotent: it may have been executed")
    if has_timed_out_again:
        return GiveUp("it timed out twice")
    if is_for_other_model and not kind.can_fall_back:
        return FallBack(to_other_model=True)
    if kind is FailureKind.RETIRED and retries_done == 0:
        return Retry(0.0)  # on another connection, regardless of settings: the request was never read (gRPC A6)
    retry = retries_done + 1
    asked_s = failure.retry_after_s
    own_s, wait_s = (
        delay_s(
            settings,
            retry=retry,
            kind=kind,
            retry_after_s=hint_s,
            previous_s=previous_s,
            u=u,
            failure_share=failure_share,
        )
        for hint_s in (None, asked_s)
    )
    is_hint = wait_s > own_s
    obstacle = _obstacle(failure, retry, settings, can_spend, now + wait_s >= deadline_at)
    if obstacle is not None:
        return FallBack() if has_next and kind.can_fall_back else GiveUp(obstacle)
    is_late = has_other_model and now + wait_s > fallback_at
    is_slow = kind in _SLOW
    is_faster_elsewhere = has_free_same_model and wait_s > _MOMENT_S
    prefers_peer = is_faster_elsewhere or (has_peer and (is_hint or is_slow or (kind in _BUSY and has_free_peer)))
    if kind.can_fall_back and (prefers_peer or is_late or (is_slow and has_other_model)):
        is_last = is_slow or is_late or settings.fallback_after == 0
        return FallBack(back_after_s=wait_s, is_hint=is_hint, is_last=is_last)
    return Retry(wait_s, is_hint)


def _obstacle(
    failure: Failure, retry: int, settings: RetrySettings, can_spend: bool, ends_too_late: bool
) -> str | None:
    """Returns why this deployment is not tried again, or None."""
    if not failure.kind.is_retriable:
        return "not retriable"
    if retry >= settings.max_attempts:
        return "max_attempts reached"
    if not can_spend:
        return "retry budget empty"
    if failure.retry_after_s is not None and failure.retry_after_s > settings.max_delay:
        return "Retry-After longer than retry.max_delay"
    if ends_too_late:
        return "deadline"
    return None
