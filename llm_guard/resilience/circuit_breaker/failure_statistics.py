"""Statistics of a deployment's recent calls: a sliding window, a run of failures, and tests for more than chance.

Counts and tests only; `resilience.circuit_breaker.breaker` decides what follows. Knows no settings.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Number of failures at the end of a run for which the time of sending is kept.
_REMEMBERED = 512
# A window younger than this has no known pace: a few calls at one instant are not heavy traffic.
_YOUNG_S = 1.0
# Weight of the last call in the moving average of failures, which thus remembers about twenty calls.
_KEPT = 1 - 1 / 20
# A second average remembers about a hundred calls: the first is too low by chance now and then.
_LASTING_KEPT = 1 - 1 / 100
_SLOTS = 10


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
