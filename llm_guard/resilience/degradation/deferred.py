"""Deferred calls: when a call becomes one, how long it is tried, and what follows a round of attempts.

The rounds are run by `deferred`, the calls are stored by `storage.calls.sqlite_store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_guard.outcome import Failure, FailureKind, Refusal
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.resilience.retry.limits import may_have_executed
from llm_guard.resilience.units import Seconds

DeadLetterMode = Literal["off", "on_request", "always"]
"""Which failed calls are kept as dead letters; on_request: those with `x-llm-guard-dead-letter: true`."""

_BETWEEN_ROUNDS = RetrySettings(base_delay=1.0, max_delay=60.0, jitter="equal", immediate_first=False)
_PASSING = frozenset({
    FailureKind.CERTIFICATE, FailureKind.SCALING_UP, FailureKind.QUOTA_EXHAUSTED, FailureKind.WINDOW_EXHAUSTED,
    FailureKind.AUTH, FailureKind.ACCOUNT_BLOCKED, FailureKind.BLOCKED,
})  # fmt: skip
"""Failures that a waiting client gains nothing from retrying, but that an operator may mend within an hour."""
_PASSING_REFUSALS = frozenset({"breaker", "limit", "client_limit", "cooldown", "deadline", "drain"})


@dataclass(frozen=True, slots=True)
class DeferredSettings:
    """Which calls get a 202 and are deferred. Durations in seconds."""

    mode: Literal["off", "on_request", "on_failure", "always"] = "on_request"
    """on_request: calls with `x-llm-guard-async: true`, at once. on_failure: those too, and every call that has failed
    for the time being. always: every call, at once."""
    deadline: Seconds = 3600.0
    """How long it is tried."""
    webhook: str | None = None
    """Webhook to notify when one is over: a name in `webhooks` of `store`; None: none."""

    def is_at_once(self, *, is_asked_for: bool) -> bool:
        """Returns whether a call is deferred before any provider is tried; `is_asked_for`: its client has requested
        it."""
        return self.mode == "always" or (is_asked_for and self.mode != "off")


@dataclass(frozen=True, slots=True)
class RetryDeferred:
    """Try the call again, after a wait in seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class EndDeferred:
    """End the call; `why` is a phrase for operators and clients."""

    why: str


def decide_after_round(
    end: Failure | Refusal, *, rounds: int, is_repeatable: bool, is_own_doing: bool, left_s: float, u: float
) -> RetryDeferred | EndDeferred:
    """Decides what follows round number `rounds` (>= 1) if it had no response.

    `is_repeatable`: it may be sent again though it may have been executed. `is_own_doing`: the failure lies in the
    request itself. `left_s`: seconds until its deadline. `u` is a uniform draw from [0, 1).
    """
    if isinstance(end, Refusal):
        if end.by not in _PASSING_REFUSALS:
            return EndDeferred("refused")
        kind = None
    elif is_own_doing:
        return EndDeferred("caused by the request itself")
    else:
        kind = end.kind
        if not kind.is_retriable and kind not in _PASSING:
            return EndDeferred("final error")
        if not is_repeatable and may_have_executed(end):
            return EndDeferred("not idempotent: it may have been executed")
    wait_s = delay_s(
        _BETWEEN_ROUNDS, retry=rounds, kind=kind, retry_after_s=end.retry_after_s, previous_s=None, u=u
    )  # fmt: skip
    return RetryDeferred(wait_s) if wait_s < left_s else EndDeferred("deadline")
