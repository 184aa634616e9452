"""When recent calls are enough evidence to open a breaker: a run of failures, or too large a share of bad calls.

`resilience.circuit_breaker.failure_statistics` tells evidence from chance; with `sensitivity: literal` the settings
mean what they say.
"""

from __future__ import annotations

from math import inf

from llm_guard.resilience.circuit_breaker.failure_statistics import (
    CallCounts,
    FailureRun,
    is_run_evidence,
    is_share_significant,
)
from llm_guard.resilience.circuit_breaker.settings import BreakerSettings


def reason_of_outage(
    settings: BreakerSettings, run: FailureRun, window: CallCounts, now: float, ok_takes_s: float
) -> str | None:  # fmt: skip
    """Returns the reason to open because of a run of failures, or None. `ok_takes_s`: average duration of a success."""
    is_evidence = run.length >= settings.consecutive_failures and (
        settings.sensitivity == "literal"
        or is_run_evidence(run, settings.consecutive_failures, window, now, ok_takes_s)
    )
    return f"{run.length} failures in a row" if is_evidence else None


def reason_of_brownout(settings: BreakerSettings, window: CallCounts) -> str | None:
    """Returns the reason to open because too large a share of calls fails or is slow, or None."""
    if settings.sensitivity == "literal" and _is_too_many(settings, window, window.failures, settings.failure_rate):
        return f"{window.failures} of {window.calls} calls failed within {settings.window:g} s"
    if settings.slow_call is not None and _is_too_many(settings, window, window.slow_calls, settings.slow_call_rate):
        return f"{window.slow_calls} of {window.calls} calls took longer than {settings.slow_call:g} s"
    return None


def _is_too_many(settings: BreakerSettings, window: CallCounts, count: int, limit: float) -> bool:
    calls = window.calls
    most_calls = settings.window_calls or inf
    if calls < min(settings.min_calls, most_calls) or count / calls < limit:
        return False
    return settings.sensitivity == "literal" or calls >= most_calls or is_share_significant(count, calls, limit)
