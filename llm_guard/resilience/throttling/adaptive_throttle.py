"""Throttle: finds out whether sending less makes fewer requests fail, and keeps a lower rate only if it does.

The statistics of a trial are in `resilience.throttling.rate_trial`. The rate for a provider that answers 429 is in
`resilience.capacity.pacing`; `resilience.circuit_breaker.breaker` decides when a deployment gets no calls at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.resilience.throttling.gcra import Bucket
from llm_guard.resilience.throttling.observation_window import Epoch, FailureShare, TrialBaseline
from llm_guard.resilience.throttling.rate_trial import at_least, differs, judge

Phase = Literal["watching", "trying", "throttling", "releasing"]
"""watching    no rate; failures are counted
trying      for a short time calls go no faster than they succeeded, to see if fewer of them fail
throttling  fewer do, so the rate stays, and grows while nothing fails
releasing   no fewer do; the calls that have waited meanwhile go, but not all at once
"""

# While watching, failures are counted over at least and at most so many seconds, and until they prove something.
_EPOCH_S = 0.5
_LONGEST_EPOCH_S = 4.0
_LEAST_CALLS = 20
_LEAST_FAILURES = 5
_LEAST_SHARE = 0.04
_LEAST_OK_PER_S = 0.5
# Fewer successes do not show the rate for a trial; then half of the longest time has to pass.
_ENOUGH_OK = 5
# A trial goes a little slower than calls succeeded, so that an overloaded provider fails none of them.
_TRIAL = 0.95
# Longest trial at a share of failures of 1, and longest of all. The time is divided by the share of failures: the
# smaller it is, the less a trial holds back, and the more calls it takes.
_LONGEST_TRIAL_S = 1.5
_LONGEST_OF_ALL_S = 15.0
# Longest trial that begins while throttling, which only looks for a slightly lower rate.
_LONGEST_AGAIN_S = 4.0
# After a trial that did not help the next one begins after twenty times its duration, within these bounds, or as soon
# as the share of failures has changed: a busy deployment notices a change within seconds, and a quiet one, where trials
# take long, is not held back by them.
_PAUSE_TRIALS = 20
_SHORTEST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 30.0
# An epoch of throttling ends after so many calls, or after a second without a failure. A larger share of failures than
# this begins another trial.
_LEAST_SENT = 10
_CLEAN_EPOCH_S = 1.0
_TOLERATED = 0.03
# A rate at which fewer than this share of the former successes are left does harm.
_LEAST_LEFT_OK = 0.5
# A rate is in use if at least this share of it is sent.
_IN_USE = 0.8
# The rate grows by 2 % an epoch near the rate that was last too fast, elsewhere by ever more.
_FIRST_STEP = 0.02
_LONGEST_STEP = 0.25
_NEAR = 0.1
# A rate that no call has waited for in this long is no longer needed.
_UNUSED_S = 30.0
# After a trial calls go this much faster than before it, until none has waited for a moment: if many went at once, the
# failures would return first, and look like an outage.
_CATCH_UP = 2.0
_RELEASED_S = 0.2

_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class ThrottleSnapshot:
    phase: Phase
    rate: float | None
    """Calls a second; None: unlimited."""
    since: float | None
    """When the rate was first limited; None: it is not."""
    next_at: float
    """Earliest instant of the next call; one in the past means now."""


class Throttle:
    """Finds out by experiment whether failures grow with the load.

    An overloaded provider serves what it has capacity for and fails the rest: at the rate of its successes nearly
    nothing fails, and no success is lost. If requests fail at random or by their content, the share of failures stays
    the same, the trial ends after a few calls, and nothing is throttled. Calls above the rate wait in the wait queue,
    as for any other limit. There is no trial if nothing succeeds: that is left to the breaker.
    """

    __slots__ = (
        "_before", "_bucket", "_epoch", "_failures_take_s", "_has_helped", "_is_second", "_next_trial_at",
        "_phase", "_reset_at", "_share", "_step", "_too_fast", "_usual", "_waited_at", "rate", "since",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.rate: float | None = None
        """Calls a second; None: unlimited."""
        self.since = now
        """When the rate was first limited."""
        self._phase: Phase = "watching"
        self._bucket = Bucket()
        self._epoch = Epoch(-inf)
        self._failures_take_s = 0.0
        """Average time that a call takes to fail."""
        self._next_trial_at = -inf
        self._before = TrialBaseline(0.0, 0.0)
        self._share = 0.0
        """Share of failures that a trial has to reduce."""
        self._usual = FailureShare()
        """The share of failures that a trial is compared with. The epoch that begins the trial is no measure: its share
        is by chance the highest of many, and the next ones are smaller."""
        self._has_helped = False
        """A trial has shown that failures grow with the load."""
        self._is_second = False
        """True if the previous trial, which began while throttling too, did not help."""
        self._too_fast = 0.0
        """Successes a second when calls last went too fast; 0: unknown."""
        self._step = _FIRST_STEP
        self._waited_at = now
        self._reset_at = -inf
        """Calls sent before this are no evidence: after an outage, calls that hang time out while others succeed."""

    @property
    def is_throttling(self) -> bool:
        """True if more calls come than succeed, and sending less has helped. Then the newest waiting call goes first:
        in the order of arrival all would wait as long as they can afford to, and when the load falls, new calls would
        wait behind the old ones (B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015)."""
        return self._has_helped

    def opens_at(self, now: float) -> float:
        """Returns the earliest instant of the next call; one in the past means now. Counts as demand: the rate grows
        only while calls wait for it."""
        if self.rate is None:
            return -inf
        if self._phase != "releasing":
            self._conclude(now)  # responses may take a minute: calls that have not failed by now count before they end
        at = self._bucket.opens_at()
        if at > now:
            self._epoch.has_waited = True
            self._waited_at = now
            if self._phase == "releasing" and now - self._epoch.began_at > _EPOCH_S:
                self._release(2 * self.rate, now)
        elif self._phase == "throttling" and now - self._waited_at > _UNUSED_S:
            self.reset(now)
        elif self._phase == "releasing" and now - self._waited_at > _RELEASED_S:
            self._end()
        return at

    def take(self, now: float) -> None:
        """Notes that a call goes."""
        self._epoch.sent += 1
        if self.rate is not None:
            self._bucket.take(self.rate, now)

    def put_back(self, entered_at: float, now: float) -> None:
        """Notes that the call that `take` let go at `entered_at` did not go after all."""
        self._epoch.sent -= entered_at >= self._epoch.began_at
        if self.rate is not None:
            self._bucket.put_back(self.rate, now)

    def note_ok(self, entered_at: float, now: float) -> None:
        """Notes a success of the call that went at `entered_at`."""
        if entered_at < self._reset_at:
            return
        epoch, phase = self._epoch, self._phase
        if phase == "watching":
            epoch.ok += 1
        elif phase == "throttling" or (phase == "trying" and entered_at >= epoch.began_at):
            epoch.ok += 1
            self._conclude(now)

    def note_failure(self, entered_at: float, now: float) -> None:
        """Notes a failure, evidence about the deployment, of the call that went at `entered_at`."""
        if entered_at < self._reset_at:
            return
        self._failures_take_s += _SMOOTHING * (now - entered_at - self._failures_take_s)
        if self._phase == "watching":
            self._watch(now)
        elif self._phase != "releasing" and entered_at >= self._epoch.began_at:
            self._epoch.failures += 1
            self._conclude(now)

    def reset(self, now: float) -> None:
        """Forgets the rate and everything that was learned."""
        self._end()
        self._next_trial_at, self._usual = -inf, FailureShare()
        self._reset_at = now

    def wait_s(self, ahead: int, now: float) -> float:
        """Returns the estimated seconds until `ahead` calls have gone, and one more may."""
        if self.rate is None:
            return 0.0
        return max(0.0, self._bucket.opens_at() - now) + ahead / self.rate

    def snapshot(self, _now: float) -> ThrottleSnapshot:
        if self.rate is None:
            return ThrottleSnapshot(self._phase, None, None, -inf)
        return ThrottleSnapshot(self._phase, self.rate, self.since, self._bucket.opens_at())

    # Watching

    def _watch(self, now: float) -> None:
        """Counts a failure, and begins a trial if it is worthwhile. The first failure begins an epoch, and does not
        count in it: slow failures come long after the successes of calls that were sent with them."""
        epoch = self._epoch
        if now - epoch.began_at > _LONGEST_EPOCH_S:
            self._usual.add(epoch.failures, epoch.calls)
            self._epoch = Epoch(now)
            return
        epoch.failures += 1
        passed_s, calls = now - epoch.began_at, epoch.calls
        if passed_s < (_EPOCH_S if epoch.ok >= _ENOUGH_OK else _LONGEST_EPOCH_S / 2):
            return
        if epoch.failures < _LEAST_FAILURES or calls < _LEAST_CALLS:
            return
        share, ok_per_s = epoch.failures / calls, (calls - epoch.failures) / passed_s
        has_changed = self._usual.calls > 0 and differs(share, calls, self._usual.share)
        if has_changed:  # or seems so, as one of many shares does by chance: the next epoch counts, this one does not
            self._usual, self._next_trial_at = FailureShare(), -inf
        else:
            self._usual.add(epoch.failures, calls)
        is_due = not has_changed and now >= self._next_trial_at
        if is_due and share >= _LEAST_SHARE and ok_per_s >= _LEAST_OK_PER_S:
            self.since = now
            self._before, self._too_fast = TrialBaseline(calls / passed_s, share), 0.0
            self._try(at_least(self._usual.share, self._usual.calls), ok_per_s, now)
        else:
            self._epoch = Epoch(now)

    # Trying

    def _try(self, share: float, ok_per_s: float, now: float) -> None:
        """Begins a trial. `share`: the share of failures that it is to reduce."""
        self._phase, self._share = "trying", share
        self._set_rate(max(_LEAST_OK_PER_S, ok_per_s * _TRIAL), now)
        self._epoch = Epoch(now)

    def _conclude(self, now: float) -> None:
        """Ends the trial or the epoch, if the results so far are enough."""
        if self._phase == "trying":
            self._judge(now)
        elif self._is_epoch_over(now):
            self._follow(now)

    def _judge(self, now: float) -> None:
        epoch, failures_s = self._epoch, 2 * self._failures_take_s
        # A call that has not failed by now is going to succeed; successes may take much longer than failures.
        decided = max(epoch.ok + epoch.failures, epoch.sent - (self.rate or 0.0) * failures_s)
        verdict = judge(self._share, decided, epoch.failures, has_helped=self._has_helped)
        longest_s = min(_LONGEST_AGAIN_S if self._has_helped else _LONGEST_OF_ALL_S, _LONGEST_TRIAL_S / self._share)
        is_over = now - epoch.began_at > longest_s + failures_s
        if verdict == "helps" or (verdict == "likely" and is_over):
            self._keep(now)
        elif verdict == "helps_not" or is_over:
            self._doubt(decided, now, is_certain=verdict == "helps_not")

    def _keep(self, now: float) -> None:
        """Keeps the lower rate: sending less helps."""
        self._phase = "throttling"
        self._has_helped = True
        self._is_second = False
        self._step = _FIRST_STEP
        self._epoch = Epoch(now)

    def _doubt(self, decided: float, now: float, *, is_certain: bool) -> None:
        """Decides what follows a trial that did not make fewer of its `decided` calls fail."""
        decided = max(1.0, decided)
        share = self._epoch.failures / decided
        if self._has_helped and not self._is_second:
            # Another reason to fail is less likely than a rate that is still slightly too high.
            self._is_second = True
            self._try(at_least(share, decided), _TRIAL * (self.rate or 0.0), now)
            return
        if is_certain:
            # Failures before the throttling are long past; if as many fail again, that is a change.
            if self._has_helped:
                self._usual = FailureShare()
            self._usual.add(self._epoch.failures, decided)
        self._pause(now)

    def _pause(self, now: float) -> None:
        """Ends the throttling, and allows no other trial for a while: nothing shows that sending less helps."""
        pause_s = _PAUSE_TRIALS * (now - self._epoch.began_at)
        self._next_trial_at = now + min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, pause_s))
        self._has_helped = False
        self._release(_CATCH_UP * self._before.per_s, now)

    # Throttling

    def _is_epoch_over(self, now: float) -> bool:
        passed_s = now - self._epoch.began_at - self._failures_take_s
        if self._epoch.sent >= _LEAST_SENT:
            return passed_s >= _EPOCH_S
        return passed_s >= _CLEAN_EPOCH_S and self._epoch.failures <= _TOLERATED * self._epoch.sent

    def _follow(self, now: float) -> None:
        """Raises the rate after an epoch, or begins another trial if calls fail again. A single failure shows nothing,
        and the epoch goes on."""
        epoch = self._epoch
        sent = max(1, epoch.sent, epoch.failures)
        share = epoch.failures / sent
        if share <= _TOLERATED:
            self._grow(now)
            self._epoch = Epoch(now)
        elif epoch.failures > 1:
            self._too_fast = self._answered_well_per_s(now)
            if self._too_fast < _LEAST_LEFT_OK * self._before.ok_per_s:
                self._pause(now)
            else:
                self._try(at_least(share, sent), self._too_fast, now)

    def _answered_well_per_s(self, now: float) -> float:
        """Successes a second. If fewer calls came than the rate allows, a burst has failed, and the successes are no
        measure of the provider's capacity: the rate that was known before is used."""
        epoch, rate = self._epoch, self.rate or 0.0
        passed_s = now - epoch.began_at
        ok_per_s = epoch.ok / passed_s
        if epoch.sent >= _IN_USE * rate * passed_s:
            return ok_per_s
        known = self._too_fast if self._too_fast > 0 else self._before.ok_per_s
        return max(ok_per_s, min(known, rate))

    def _grow(self, now: float) -> None:
        rate = self.rate or 0.0
        if not self._epoch.has_waited:
            return
        is_near = abs(rate - self._too_fast) <= _NEAR * self._too_fast
        self._step = _FIRST_STEP if is_near else min(_LONGEST_STEP, 3 * self._step)
        self._set_rate(rate * (1 + self._step), now)

    # The end

    def _release(self, rate: float, now: float) -> None:
        self._phase = "releasing"
        self._set_rate(rate, now)
        self._epoch = Epoch(now)

    def _end(self) -> None:
        self.rate = None
        self._phase = "watching"
        self._has_helped = False
        self._epoch = Epoch(-inf)

    def _set_rate(self, rate: float, now: float) -> None:
        self.rate = rate
        self._waited_at = now
        self._bucket.shorten(rate, now)
