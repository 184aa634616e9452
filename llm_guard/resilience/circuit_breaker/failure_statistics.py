"""Statistics of a deployment's recent calls: a sliding window, a run of failures, and tests for more than chance.

Counts and tests only; `resilience.circuit_breaker.breaker` decides what follows. Knows no settings.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, log
from typing import Protocol

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
# Number of failures at the end of a run for which the time of sending is kept.
_REMEMBERED = 512
# A call without a result is assumed to hang after this many times the average duration of a success, or after so many
# seconds if that duration is unknown.
_HANG_TIMES = 4.0
_HANG_S = 30.0
# A window younger than this has no known pace: a few calls at one instant are not heavy traffic.
_YOUNG_S = 1.0
# Fraction of a limit that is surely tolerated, and the probability of mistaking it for the limit.
_TOLERATED = 0.9
_CHANCE = 1e-4
# Weight of the last call in the moving average of failures, which thus remembers about twenty calls.
_KEPT = 1 - 1 / 20
# A second average remembers about a hundred calls: the first is too low by chance now and then.
_LASTING_KEPT = 1 - 1 / 100
_SLOTS = 10


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


@dataclass(slots=True)
class _Slot:
    began_at: float
    calls: int = 0
    failures: int = 0
    slow_calls: int = 0


class SlidingWindow:
    """Counts of the calls of the last `window_s` seconds, and of these only the last `most_calls` if that is set.

    By time alone, calls are counted in slots of a tenth of the window, and the oldest slot leaves as a whole when a new
    one begins or at `expire`, which must be called before the counts are read. With `most_calls` each call has a slot.
    """

    __slots__ = ("_slots", "calls", "failures", "slow_calls")

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self.calls = 0
        self.failures = 0
        self.slow_calls = 0

    def add(self, is_failure: bool, is_slow: bool, now: float, window_s: float, most_calls: int | None) -> None:
        slot: _Slot | None = self._slots[-1] if self._slots else None  # as a C struct in the compiled build
        if slot is None or now >= slot.began_at + (window_s / _SLOTS if most_calls is None else 0.0):
            self.expire(now, window_s)
            slot = _Slot(now)
            self._slots.append(slot)
        slot.calls += 1
        self.calls += 1
        if is_failure:
            slot.failures += 1
            self.failures += 1
        if is_slow:
            slot.slow_calls += 1
            self.slow_calls += 1
        while most_calls is not None and self.calls > most_calls:
            self._drop_oldest()

    def take_back(self, added_at: float, now: float, window_s: float, most_calls: int | None) -> None:
        """Turns a success into a failure. If the call is no longer counted, it is added as a failure."""
        self.expire(now, window_s)
        # The call's slot is not known: the failure goes into the newest slot that has a success.
        slot = next((slot for slot in reversed(self._slots) if slot.failures < slot.calls), None)
        if slot is None or added_at + window_s <= now:
            self.add(True, False, now, window_s, most_calls)
            return
        slot.failures += 1
        self.failures += 1

    def expire(self, now: float, window_s: float) -> None:
        while self._slots and self._slots[0].began_at + window_s <= now:
            self._drop_oldest()

    def is_young(self, now: float) -> bool:
        """Returns whether the window is too young for its pace to be known."""
        return not self._slots or now - self._slots[0].began_at < _YOUNG_S

    def calls_per_s(self, now: float) -> float:
        """Returns the mean calls per second since the oldest call that is still counted."""
        return self.calls / max(_YOUNG_S, self.length_s(now)) if self._slots else 0.0

    def length_s(self, now: float) -> float:
        """Returns the age of the oldest call that is still counted; 0: there is none."""
        return now - self._slots[0].began_at if self._slots else 0.0

    def _drop_oldest(self) -> None:
        slot = self._slots.popleft()
        self.calls -= slot.calls
        self.failures -= slot.failures
        self.slow_calls -= slot.slow_calls


class ConsecutiveFailures:
    """Failures since the last success, and the recent share of failures before them.

    Does not age: a deployment that gets one call a day fails as surely as a busy one.
    """

    __slots__ = (
        "_counted_before", "_failed", "_failed_place", "_first_place", "_lasting", "_lasting_end", "_length_before",
        "_ok_place", "_ok_place_before", "_rate_before", "_sent", "began_at", "counted", "ends", "first_sent_at",
        "length", "recent_rate", "slowest_s", "takes_s",
    )  # fmt: skip

    def __init__(self, recent_rate: float = 0.0) -> None:
        self.length = 0
        self.counted = 0
        """Failures in the run of calls sent after every call that succeeded: only these may show an outage.
        Where failures take longer than successes, the others were sent while the provider still served."""
        self.began_at = 0.0
        """When the first counted failure was noted; meaningless while `counted` is 0, as are the next two."""
        self.first_sent_at = 0.0
        """When the call of the first counted failure was sent."""
        self.takes_s = 0.0
        """How long the counted calls took to fail, on average."""
        self.recent_rate = recent_rate
        self.ends = 0
        """Successes so far."""
        self.slowest_s = 0.0
        """How long the slowest counted call took to fail."""
        self._sent: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        """When the calls of the last counted failures were sent, and their places in the order of sending."""
        self._first_place = self._failed = 0
        """Place of the call that failed first, or the first place after all calls that had ended by then; and the
        number of failures of calls from there on."""
        self._failed_place = 0
        """Highest place of a failed call."""
        self._ok_place = self._ok_place_before = 0
        """Highest place of a call that succeeded."""
        self._length_before = self._counted_before = 0
        self._rate_before = recent_rate
        self._lasting = 0.0
        self._lasting_end = 0
        """The slower average, as of success number `_lasting_end`."""

    def add_failure(self, now: float, sent_at: float, place: int = 0) -> None:
        """Adds a failure. `place`: the call's number in the order in which calls were sent."""
        self.length += 1
        if place >= self._ok_place:
            self._count(now, sent_at, place)

    def _count(self, now: float, sent_at: float, place: int) -> None:
        if not self.counted:
            self.began_at, self.first_sent_at = now, sent_at
            self.takes_s = self.slowest_s = 0.0
            self._sent.clear()
            self._first_place, self._failed = max(self._ok_place + 1, self._failed_place + 1, place), 0
        self.counted += 1
        self.takes_s += (now - sent_at - self.takes_s) / self.counted
        self.slowest_s = max(self.slowest_s, now - sent_at)
        self._sent.append((sent_at, place))
        self._failed_place = max(self._failed_place, place)
        self._failed += place >= self._first_place

    def is_survived(self, now: float) -> bool:
        """Returns whether a call sent since the first failure has not failed, though it has been in flight for longer
        than the slowest failure took."""
        old_at = now - self.slowest_s
        old_place = max((place for sent_at, place in self._sent if sent_at <= old_at), default=0)
        young = sum(place > old_place for _, place in self._sent)
        return old_place - self._first_place + 1 > max(0, self._failed - young)

    def latest_sent(self, most: int) -> list[float]:
        """Returns when the calls of the latest counted failures were sent, the newest first."""
        return [self._sent[-place][0] for place in range(1, min(most, len(self._sent)) + 1)] if self.counted else []

    def lately(self) -> float:
        """Returns the share of failures without the counted ones: the worse of both averages."""
        recent = 1 - (1 - self.recent_rate) * _KEPT ** (self.length - self.counted)
        return max(recent, self._lasting * _LASTING_KEPT ** (self.ends - self._lasting_end))

    def count_sent_by(self, at: float) -> int:
        """Returns the number of counted failures of calls sent at or before `at`."""
        later = 0
        for sent_at, _ in reversed(self._sent):
            if sent_at <= at:
                break
            later += 1
        return self.counted - later

    def end(self, place: int = 0) -> int:
        """Ends the run with a success and returns the success's number. The moving average takes in the whole run, then
        the success. `place` as for a failure."""
        self.ends += 1
        self._ok_place_before = self._ok_place
        if place > self._ok_place:
            self._ok_place = place
        length = self._length_before = self.length
        rate = self._rate_before = self.recent_rate
        if length:
            rate = 1 - (1 - rate) * _KEPT**length
            lasting = self._lasting * _LASTING_KEPT ** (self.ends - 1 - self._lasting_end)
            self._lasting = 1 - (1 - lasting) * _LASTING_KEPT**length
            self._lasting_end = self.ends - 1
            self._counted_before = self.counted
            self.length = self.counted = 0
        self.recent_rate = rate * _KEPT
        return self.ends

    def take_back(self, end: int, now: float, sent_at: float, place: int) -> None:
        """Turns the success with this number into a failure. If it was the latest, the run that it ended goes on. It
        counts even if calls that were sent later have succeeded: these may be streams that have only begun."""
        if self.ends == end:
            if self._length_before:
                self.length += self._length_before
                self.counted += self._counted_before
            self.recent_rate = self._rate_before
            self._ok_place = self._ok_place_before
        self.length += 1
        self._count(now, sent_at, place)


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
