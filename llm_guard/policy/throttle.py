"""Finds out whether sending less makes fewer requests fail, and keeps to a lower rate only where it does.

Owns that rate. Does not own the rate of a provider that answers 429 (`policy.pacer`), nor when a deployment is left
alone altogether (`policy.breaker`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal

from llm_guard.policy.gcra import Bucket

Phase = Literal["watching", "trying", "throttling", "releasing"]
"""watching    no rate; failures are counted
trying      for a moment calls go no faster than calls were answered well; how many of them fail?
throttling  it was fewer, so the rate stays, and grows while nothing fails
releasing   it was not, and the calls that waited meanwhile go, but not all at once
"""

# Failures are counted over at least and at most so many seconds before they are worth a trial.
_EPOCH_S = 0.5
_LONGEST_EPOCH_S = 4.0
# Fewer calls, or fewer failures, or a smaller share of them prove nothing.
_LEAST_CALLS = 20
_LEAST_FAILURES = 5
_LEAST_SHARE = 0.04
_LEAST_OK_PER_S = 0.5
# A trial goes a little slower than calls were answered well, so that a provider that is overloaded fails none of them.
_TRIAL = 0.95
# Where sending less helps, so much of the share of failures is left, at most.
_LEFT = 0.25
# Log likelihood ratios that decide (Wald's sequential test): wrong in 0.3 % and in 5 % of the trials.
_HELPS = 6.0
_HELPS_NOT = -3.0
_LIKELY = 4.0
# A trial that too few calls have taken part in ends undecided.
_LONGEST_TRIAL_S = 5.0
# Failures are random: the next trial begins after so long, twice as long each time, or as soon as their share changes.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 30.0
_CHANGE = 0.15
_SIGMAS = 3.0
# While throttling an epoch with a larger share of failures begins another trial.
_TOLERATED = 0.03
_LEAST_SENT = 10
_LONG_EPOCH_S = 1.0
_FIRST_STEP = 0.02
_LONGEST_STEP = 0.5
# Within this share of what was answered well before the trial the rate grows slowly, beyond it faster and faster.
_NEAR = 0.1
# A rate that no call has waited for in so long is not needed any more.
_UNUSED_S = 30.0
_SMOOTHING = 0.1
# After a trial calls go so much faster than before it, until none has waited for a moment: of many that go at once those
# that fail come back first, and look like an outage.
_CATCH_UP = 2.0
_RELEASED_S = 0.2


@dataclass(frozen=True, slots=True)
class ThrottleSnapshot:
    phase: Phase
    rate: float | None
    """Calls a second; None: unlimited."""
    since: float | None
    """When calls began to be throttled; None: they are not."""
    next_at: float
    """Earliest instant of the next call; one in the past means now."""


class Throttle:
    """Asks by experiment whether failures grow with the load.

    An overloaded provider answers well what it has capacity for, and fails the rest: at the rate of its good answers
    nearly nothing fails, and no good answer is lost. Where requests fail at random or by their content the share of
    failures stays as it was, the trial ends after a few calls, and nothing is throttled. Calls above the rate wait in
    the line, as for any other limit. Nothing is tried where nothing is answered well: that is the breaker's.
    """

    __slots__ = (
        "_began_at", "_bucket", "_capacity", "_clean_rate", "_failures", "_failures_take_s", "_has_waited", "_next_trial_at", "_ok", "_pause_s", "_per_s_before",
        "_phase", "_sent", "_share", "_share_before", "_share_cured", "_share_of_random", "_step", "_waited_at", "rate", "since",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.rate: float | None = None
        """Calls a second; None: unlimited."""
        self.since = now
        """When the rate was limited first."""
        self._bucket = Bucket()
        self._phase: Phase = "watching"
        self._failures_take_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._next_trial_at = -inf
        self._share_of_random = 0.0
        """Share of failures of which a trial has shown that they are random."""
        self._share = 0.0
        """Share of failures before the trial."""
        self._share_cured = 0.0
        """Share of failures that throttling has made an end of; 0: nothing is known to help."""
        self._per_s_before = 0.0
        self._share_before = 0.0
        """Calls a second before the trial, and the share of them that failed."""
        self._capacity = 0.0
        """Calls a second that were answered well when calls went too fast last; 0: not known yet."""
        self._clean_rate = 0.0
        """The latest rate at which nothing failed."""
        self._step = _FIRST_STEP
        self._waited_at = now
        self._begin_epoch(now)

    def opens_at(self, now: float) -> float:
        """Earliest instant of the next call; one in the past means now. Asking is wanting: the rate grows only where
        calls wait for it."""
        if self.rate is None:
            return -inf
        at = self._bucket.opens_at()
        if at > now:
            self._has_waited = True
            self._waited_at = now
            if self._phase == "releasing" and now - self._began_at > _EPOCH_S:
                self._release_faster(now)
        elif now - self._waited_at > (_UNUSED_S if self._phase == "throttling" else _RELEASED_S):
            self._end_unused(now)
        return at

    def take(self, now: float) -> None:
        """A call goes."""
        if self.rate is not None:
            self._bucket.take(self.rate, now)
            self._sent += 1

    def put_back(self, entered_at: float, now: float) -> None:
        """The call that `take` let go at `entered_at` did not go after all."""
        if self.rate is not None:
            self._bucket.put_back(self.rate, now)
            self._sent -= entered_at >= self._began_at

    def note_ok(self, entered_at: float, now: float) -> None:
        """The call that went at `entered_at` was answered well."""
        if self._phase == "watching":
            self._ok += 1
        elif self._phase == "throttling" or (self._phase == "trying" and entered_at >= self._began_at):
            self._ok += 1
            self._look(now)

    def note_failure(self, entered_at: float, now: float) -> None:
        """The call that went at `entered_at` failed in a way that tells of its deployment."""
        self._failures_take_s += _SMOOTHING * (now - entered_at - self._failures_take_s)
        if self._phase == "watching":
            self._watch(now)
        elif entered_at >= self._began_at and self._phase != "releasing":
            self._failures += 1
            self._look(now)

    def release(self, now: float) -> None:
        """Forgets the rate, and whatever was found out."""
        self._stop(now)
        self._pause_s, self._next_trial_at, self._share_of_random = _FIRST_PAUSE_S, -inf, 0.0

    def wait_s(self, ahead: int, now: float) -> float:
        """Estimated seconds until `ahead` calls have gone, and one more may."""
        if self.rate is None:
            return 0.0
        return max(0.0, self._bucket.opens_at() - now) + ahead / self.rate

    def snapshot(self, _now: float) -> ThrottleSnapshot:
        if self.rate is None:
            return ThrottleSnapshot(self._phase, None, None, -inf)
        return ThrottleSnapshot(self._phase, self.rate, self.since, self._bucket.opens_at())

    # Phases

    def _watch(self, now: float) -> None:
        """A call has failed: whether that is worth a trial."""
        if now - self._began_at > _LONGEST_EPOCH_S:
            self._begin_epoch(now)
        self._failures += 1
        passed_s = now - self._began_at
        ended = self._ok + self._failures
        if passed_s < _EPOCH_S or self._failures < _LEAST_FAILURES or ended < _LEAST_CALLS:
            return
        share = self._failures / ended
        ok_per_s = self._ok / passed_s
        is_due = now >= self._next_trial_at or self._has_changed(share, ended)
        if is_due and share >= _LEAST_SHARE and ok_per_s >= _LEAST_OK_PER_S:
            self._per_s_before, self._share_before, self._capacity = ended / passed_s, share, 0.0
            self._try(at_least(share, ended), ok_per_s, now)
        else:
            self._begin_epoch(now)

    def _has_changed(self, share: float, ended: int) -> bool:
        """Whether it is another share than the one that was found to be random, by more than chance."""
        known = self._share_of_random
        return abs(share - known) > max(_CHANGE, _SIGMAS * sqrt(share * (1 - share) / ended))

    def _try(self, share: float, ok_per_s: float, now: float) -> None:
        """`share`: of the failures that are to become fewer."""
        if self.rate is None:
            self.since = now
        self.rate = max(_LEAST_OK_PER_S, ok_per_s * _TRIAL)
        self._share = share
        self._phase = "trying"
        self._waited_at = now
        self._bucket.shorten(self.rate, now)
        self._begin_epoch(now)

    def _look(self, now: float) -> None:
        """A call of a trial has ended, or one while throttling."""
        if self._phase == "trying":
            self._judge(now)
        elif self._is_epoch_over(now):
            self._follow(now)

    def _judge(self, now: float) -> None:
        """Whether fewer calls fail than before: a sequential test of the old share against a quarter of it."""
        old, new = self._share, self._share * _LEFT
        # What has not failed by now is going to be answered; answers may take much longer than failures.
        decided = max(self._ok, self._sent - (self.rate or 0.0) * 2 * self._failures_take_s) - self._failures
        evidence = max(0.0, decided) * log((1 - new) / max(1e-3, 1 - old)) + self._failures * log(_LEFT)
        if evidence >= _HELPS:
            self._keep(now)
        elif evidence <= _HELPS_NOT:
            self._give_up(now)
        elif now - self._began_at > _LONGEST_TRIAL_S + 2 * self._failures_take_s:
            self._end_undecided(evidence, now)

    def _end_undecided(self, evidence: float, now: float) -> None:
        if evidence > (0 if self._share_cured else _LIKELY):
            self._keep(now)
        else:
            self._pause(now)

    def _keep(self, now: float) -> None:
        """Sending less helps."""
        self._phase = "throttling"
        self._share_cured = max(self._share_cured, self._share)
        self._clean_rate = self.rate or 0.0
        self._step = _FIRST_STEP
        self._pause_s = _FIRST_PAUSE_S
        self._begin_epoch(now)

    def _give_up(self, now: float) -> None:
        """Sending less does not help."""
        self._share_of_random = self._share_before
        self._pause(now)

    def _pause(self, now: float) -> None:
        self._next_trial_at = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        self._release_slowly(now)

    def _follow(self, now: float) -> None:
        """An epoch of throttling is over."""
        rate, passed_s = self.rate or 0.0, now - self._began_at
        share = self._failures / max(1, self._sent, self._failures)
        if self._failures >= 2 and share > _TOLERATED:
            self._end_failing_epoch(at_least(share, max(self._sent, self._failures)), self._ok / passed_s, now)
            return
        if not self._failures:
            self._clean_rate = rate
        if self._has_waited and not self._failures:
            is_near = abs(rate - self._capacity) <= _NEAR * self._capacity
            self._step = _FIRST_STEP if is_near else min(_LONGEST_STEP, 2 * self._step)
            self.rate = rate * (1 + self._step)
            self._bucket.shorten(self.rate, now)
        self._begin_epoch(now)

    def _end_failing_epoch(self, share: float, ok_per_s: float, now: float) -> None:
        """Calls went too fast, unless so many fail at a rate at which none did."""
        if share > self._share_cured / 2 and (self.rate or 0.0) <= self._clean_rate * (1 + _NEAR):
            self._share_before = share
            self._give_up(now)
        else:
            self._capacity = ok_per_s
            self._try(share, ok_per_s, now)

    def _is_epoch_over(self, now: float) -> bool:
        passed_s = now - self._began_at - self._failures_take_s
        return passed_s >= _EPOCH_S and (self._sent >= _LEAST_SENT or (not self._failures and passed_s >= _LONG_EPOCH_S))

    def _end_unused(self, now: float) -> None:
        """No call has waited for a while."""
        if self._phase == "throttling":
            self.release(now)
        elif self._phase == "releasing":
            self._stop(now)

    def _release_slowly(self, now: float) -> None:
        self._phase = "releasing"
        self._share_cured = 0.0
        self._waited_at = now
        self.rate = _CATCH_UP * self._per_s_before
        self._bucket.shorten(self.rate, now)
        self._began_at = now

    def _release_faster(self, now: float) -> None:
        self.rate = 2 * (self.rate or 0.0)
        self._bucket.shorten(self.rate, now)
        self._began_at = now

    def _stop(self, now: float) -> None:
        self.rate = None
        self._share_cured = 0.0
        self._phase = "watching"
        self._begin_epoch(now)

    def _begin_epoch(self, now: float) -> None:
        self._began_at = now
        self._ok = self._failures = self._sent = 0
        self._has_waited = False


def at_least(share: float, calls: int) -> float:
    """What a share that was seen in so many calls is, with luck left out: a trial begins where it is high by chance."""
    return max(_LEAST_SHARE / 2, share - sqrt(share * (1 - share) / calls))
