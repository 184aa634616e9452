"""When recent calls are enough evidence to open a breaker: a run of failures, or too large a share of bad calls.

Distinguishes evidence from chance; with `sensitivity: literal` the settings mean what they say.
"""

from __future__ import annotations

from math import inf, log
from typing import Protocol

from llm_guard.resilience.circuit_breaker.settings import BreakerSettings

# A weak prior: before its first call a deployment is assumed to fail once in ten times. That weighs no more than two
# calls, so the first failures of a brownout outweigh it.
_PRIOR_RATE = 0.1
_PRIOR_CALLS = 2
# A brownout worse than this counts as an outage, even if a higher rate is tolerated.
_WORST_RATE = 0.9
# Time that a busy deployment's run of failures must fill, at its usual pace, to be certain.
_PATIENCE_S = 0.25
# A threshold below the default means that a quick breaker is wanted, not a careful one.
_PATIENT_FROM = 5
# Longest time by which the wait for successes may delay the detection of an outage. With 0.25 s, 62 of 810 simulated
# runs of random failures open a breaker by chance (responses of up to 5 s, bursts of up to 300 calls), with 0.5 s 17.
_LONGEST_WAIT_S = 0.5
# So many failures in a row are not chance, however fast they came.
_SURE = 20
# A call without a result is assumed to hang after this many times the average duration of a success, or after so many
# seconds if that duration is unknown.
_HANG_TIMES = 4.0
_HANG_S = 30.0
# Fraction of a limit that is surely tolerated, and the probability of mistaking it for the limit.
_TOLERATED = 0.9
_CHANCE = 1e-4


class CallCounts(Protocol):
    """Counts of recent calls: `SlidingWindow`, or those of several gateways."""

    calls: int
    failures: int
    slow_calls: int

    def is_young(self, now: float) -> bool: ...

    def calls_per_s(self, now: float) -> float: ...


class FailureRun(Protocol):
    """Failures in a row: `ConsecutiveFailures`, or those of several gateways."""

    counted: int
    began_at: float
    takes_s: float

    @property
    def length(self) -> int: ...

    def lately(self) -> float: ...

    def count_sent_by(self, at: float) -> int: ...

    def is_survived(self, now: float) -> bool: ...


def is_run_evidence(
    run: FailureRun, threshold: int, window: CallCounts, now: float, ok_takes_s: float = 0.0
) -> bool:  # fmt: skip
    """Returns whether `threshold` or more failures in a row are an outage, and not chance at the rate observed
    otherwise.

    Among n calls that fail independently at rate r, about n * r**k runs of k failures begin (first moment; Feller,
    An Introduction to Probability Theory, vol. 1, XIII.7). The run is evidence when that expectation is no higher
    than that of `threshold` failures under the prior alone, 2 * 0.1**threshold. So if no other failure is known,
    exactly `threshold` failures are enough, after any number of calls; at a steady 40 % of 9,600 calls in the window 22
    are needed instead of 5, at 50 % 29. This cannot recognize a brownout of rate p whose very first calls fail (five
    in a row before any other failure: p**4, 0.8 % at 30 %, 2.6 % at 40 %).

    The rate is that of the calls outside the run: in the window, with the prior, or the recent averages if they are
    worse, because the window is slow to notice that a brownout began. It is capped at 0.9: a worse brownout cannot be
    distinguished from an outage. Where calls are frequent, certainty is cheap: the run has to fill a quarter of a
    second of the window's mean pace, so that neither a brownout's first calls nor a blip are taken for an outage. While
    the window is too young to know its pace, the run must last that long or have 20 failures, unless the threshold is
    below 5.

    Calls fail sooner than they succeed: of many sent at one moment only the failures are known at first. So a run must
    last at least `ok_takes_s`, the average duration of a success (in a window without one, that of a failure), or half
    a second if that is shorter; and failures of calls sent less than that ago count only up to the number that the
    window's mean pace would bring. A call sent since the run began that is in flight for longer than the others took to
    fail is going to succeed, and so speaks against an outage: otherwise responses of 5 s would come too late to show
    that only a few calls fail.
    """
    wait_s = min(ok_takes_s if window.calls > window.failures else run.takes_s, _LONGEST_WAIT_S)
    if threshold >= _PATIENT_FROM and now - run.began_at < wait_s:
        return False
    if run.counted < max(threshold, _PATIENCE_S * window.calls_per_s(now)):
        return False
    if threshold >= _PATIENT_FROM and run.counted < _SURE and window.is_young(now) and now - run.began_at < _PATIENCE_S:
        return False
    calls = _PRIOR_CALLS + max(0, window.calls - run.counted)
    failures = _PRIOR_CALLS * _PRIOR_RATE + max(0, window.failures - run.counted)
    rate = min(max(failures / calls, run.lately()), _WORST_RATE)
    if threshold >= _PATIENT_FROM and _is_survived(run, now, ok_takes_s):
        return False
    counted: float = run.counted
    if threshold >= _PATIENT_FROM:
        early = run.count_sent_by(now - wait_s)
        counted = early + min(run.counted - early, wait_s * window.calls_per_s(now))
    expected_runs: float = calls * rate**counted
    # With a threshold of 1 and no other failure both sides are equal, except for rounding.
    return expected_runs <= _PRIOR_CALLS * _PRIOR_RATE**threshold * (1 + 1e-9)


def _is_survived(run: FailureRun, now: float, ok_takes_s: float) -> bool:
    hang_s = _HANG_TIMES * ok_takes_s if ok_takes_s > 0 else _HANG_S
    return now - run.began_at < hang_s and run.is_survived(now)


def is_share_significant(count: int, calls: int, limit: float) -> bool:
    """Returns whether `count` of `calls` > 0 (a share of at least `limit`) would hardly be seen at 0.9 times `limit`.

    Hardly: less than once in 10,000, by Chernoff's bound on the binomial tail, exp(-calls * D), where D is the
    relative entropy of the two shares (Hoeffding 1963, theorem 1). A bound instead of an estimate, because the test
    is repeated at each failure. At a limit of 0.5 it takes 204 calls of which 60 % count, 36 of 80 %, 12 of 100 %; of
    exactly the limit 1,833. At a limit of 0.8 it takes 95 calls of 90 % and 29 of 100 %.
    """
    return calls * relative_entropy(count / calls, _TOLERATED * limit) >= -log(_CHANCE)


def relative_entropy(share: float, rate: float) -> float:
    """Returns the relative entropy of a share to a rate < 1, in nats per call."""
    if rate == 0:
        return inf if share > 0 else 0.0
    counted = share * log(share / rate) if share > 0 else 0.0
    rest = (1 - share) * log((1 - share) / (1 - rate)) if share < 1 else 0.0
    return counted + rest


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
