"""Circuit breaker of a deployment: when calls to it are refused, and how they are let through again.

Counts recent calls in a sliding window, and failures in a row. Which failures count is defined by
`outcome.FailureKind`, how many open a breaker by `resilience.circuit_breaker.opening_rules`.

    closed         all calls pass; opens when there is enough evidence of an outage
    open           no call passes until the open period ends; the next call then makes it half-open
    half_open      a few probes pass; enough successes close it, one failure opens it again
    forced_open    set by an operator: no call passes until the state is changed
    forced_closed  set by an operator: all calls pass and are counted, and nothing opens it
    metrics_only   as forced_closed; the name says that the breaker is only being watched
    disabled       all calls pass, none is counted
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.history import (
    BreakerHistory,
    BreakerMode,
    BreakerSnapshot,
    BreakerState,
    Transition,
)
from llm_guard.resilience.circuit_breaker.open_duration import OpenDuration
from llm_guard.resilience.circuit_breaker.opening_rules import reason_of_brownout, reason_of_outage
from llm_guard.resilience.circuit_breaker.settings import BreakerSettings, Sensitivity

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


__all__ = ["Breaker", "BreakerSettings", "BreakerSnapshot", "Permit", "Sensitivity"]

# Looking up an Enum member takes as long as the rest of such a test (CPython 3.11: 50 ns).
_NO_EVIDENCE = Signal.NO_EVIDENCE
_UNHEALTHY = Signal.UNHEALTHY

# Share of failures that is expected after an outage, until calls show a better one. At 50 calls/s, after outages that
# end with 90 % random failures, one in 150 is followed by an opening by chance; after those that end with 80 %, none.
# With 0.9 there is none at all, but an outage that resumes is noticed after 2 s and 110 failures instead of 41; with
# 0.6 there are 3 in 40.
AFTER_OUTAGE = 0.75
# The least time that a probe is expected to take, in seconds, when a refused call is given a time to return.
_PROBE_S = 0.1
# Weight of the latest success in the average duration of a success.
_SMOOTHING = 0.1

_AUTOMATIC: tuple[BreakerState, ...] = ("closed", "open", "half_open")
_PASSING: tuple[BreakerState, ...] = ("closed", "forced_closed", "metrics_only", "disabled")


@dataclass(slots=True, eq=False)
class Permit:
    """Permission for one attempt. Every permit is settled exactly once, however the attempt ended."""

    generation: int
    is_probe: bool
    sent_at: float
    place: int = 0
    """Number of the call in the order in which calls were let through."""
    is_settled: bool = False
    end: int = 0
    """Number of the success, within the generation, that it was settled as; 0: none."""
    settled_at: float = 0.0


class Breaker:
    """A circuit breaker on monotonic time; `settings` may be replaced at any moment.

    Every change of state begins a new generation. Reports for permits of an earlier generation are ignored, except a
    success of a call that was sent during the outage.

    A probe holds a lease of 1 s to 2.1 s (`OpenDuration.lease_s`). One that is never settled frees its place when the
    lease ends (a real router stayed half-open for six days because of one lost probe). A probe that outlives its lease
    can still close the circuit, so slow responses can. Its failure counts only if no newer probe is in flight: it may
    have been sent long before the provider recovered.
    """

    __slots__ = (
        "_generation", "_leases", "_ok_takes_s", "_opening", "_outage_from", "_run", "_sent", "_settings",
        "_successes", "_why", "_window", "history", "state",
    )  # fmt: skip

    def __init__(self, settings: BreakerSettings, phase: float = 0.0) -> None:
        """`phase`, 0 <= phase < 1, is drawn once per breaker, so that breakers differ in their jitter."""
        self._settings = settings
        self.state: BreakerState = "closed" if settings.state == "auto" else settings.state
        """The state after the last call: after the open period it stays `open` until the next call. Read-only."""
        self._generation = 0
        self._outage_from = inf
        """When the first call was sent of the outage that a run of failures has shown; inf: no such outage."""
        self._sent = 0
        """Calls that were let through, except those that ended without evidence."""
        self.history = BreakerHistory()
        self._window = SlidingWindow()
        self._run = ConsecutiveFailures()
        self._opening = OpenDuration(phase)
        self._leases: dict[Permit, float] = {}
        self._successes = 0
        self._ok_takes_s = 0.0
        """Average duration of a success."""
        self._why: str | None = None

    @property
    def settings(self) -> BreakerSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: BreakerSettings) -> None:
        """Takes effect at once, except for an open period that has begun. A `state` that differs from the previous
        config's is entered at once; reloading a config in which it is unchanged keeps what `force` has set."""
        is_other = settings.state != self._settings.state
        self._settings = settings
        if is_other and (state := self._under(settings.state)) != self.state:
            self._enter(state)

    @property
    def refused(self) -> int:
        """Calls refused since it last left closed, or was forced open."""
        return self._opening.refused

    def try_acquire(self, now: float) -> Permit | None:
        """Returns a permit, which must be settled, or None if no call may be sent now."""
        if self.state in _PASSING:
            self._sent += 1
            return Permit(self._generation, False, now, self._sent)
        if self.state == "forced_open" or (self.state == "open" and now < self._opening.probe_at()):
            self._opening.refused += 1
            return None
        if self.state == "open":
            self._change("half_open", now, "the open duration has elapsed")
        self._leases = {permit: ends_at for permit, ends_at in self._leases.items() if ends_at > now}
        if len(self._leases) >= self._settings.half_open_calls:
            self._opening.refused += 1
            return None
        return self._new_probe(now)

    def try_acquire_extra(self, now: float) -> Permit | None:
        """Returns a permit for a probe before the open period has ended, or beside the probes in flight; None unless
        it is open or half-open. For callers that `resilience.circuit_breaker.callers` allows one."""
        self.end_opening(now, "another caller's call is the probe")
        return self._new_probe(now) if self.state == "half_open" else None

    def settle(self, permit: Permit, signal: Signal, now: float, duration_s: float | None = None) -> Transition | None:
        """Returns the permit and counts the outcome; a second time for the same permit does nothing. `duration_s` is
        how long the call took, for the slow-call rate; None: unknown, and then not slow."""
        if permit.is_settled:
            return None
        permit.is_settled = True
        settings = self._settings
        is_slow = settings.slow_call is not None and duration_s is not None and duration_s > settings.slow_call
        if permit.generation != self._generation:
            return self._note_late(permit, signal, now, is_slow=is_slow)
        is_overdue = permit.is_probe and self._leases.pop(permit, 0.0) <= now
        if signal is _NO_EVIDENCE or self.state == "disabled":
            self._sent -= 1
            return None
        is_failure = signal is _UNHEALTHY
        if permit.is_probe:
            if is_overdue and (is_failure or is_slow) and self._live_leases(now):
                return None
            return self._judge_probe(permit, signal, is_slow, now)
        self._window.add(is_failure, is_slow, now, settings.window, settings.window_calls)
        if is_failure:
            self._run.add_failure(now, permit.sent_at, permit.place)
        else:
            permit.end, permit.settled_at = self._run.end(permit.place), now
            took_s = now - permit.sent_at if duration_s is None else duration_s
            weight = _SMOOTHING if self._ok_takes_s > 0 else 1.0
            self._ok_takes_s += weight * (took_s - self._ok_takes_s)
        # A success may complete `min_calls`. The statistical rules need a new failure: a success adds no evidence.
        is_worth_a_look = is_failure or is_slow or settings.sensitivity == "literal"
        return self._conclude(now) if is_worth_a_look else None

    def revise_to_failure(self, permit: Permit, now: float) -> Transition | None:
        """Turns a success into a failure, once per permit: a stream that began well broke off later. Streams
        last long, and failures are quick: if a stream were counted only when it ends, a deployment that has just
        recovered would show nothing but failures."""
        if permit.end == 0 or permit.generation != self._generation:
            return None
        if permit.is_probe:
            return self._change("open", now, "a probe ended without a result")
        self._window.take_back(permit.settled_at, now, self._settings.window, self._settings.window_calls)
        self._run.take_back(permit.end, now, permit.sent_at, permit.place)
        permit.end = 0
        return self._conclude(now)

    def note_probe(self, is_ok: bool, now: float) -> Transition | None:
        """Notes the result of a light health probe, which runs beside the calls. A success ends the open period early;
        a failure changes nothing, nor does either in another state than open."""
        return self.end_opening(now, "a health probe succeeded") if is_ok else None

    def end_opening(self, now: float, why: str) -> Transition | None:
        """Ends the open period early, so that the next call is a probe. Does nothing in any other state than open."""
        return self._change("half_open", now, why) if self.state == "open" else None

    def force(self, mode: BreakerMode, now: float) -> Transition | None:
        """Sets an operator override. `auto` leads from a forced state to closed with an empty window, and changes
        nothing in an automatic state. Lasts until the next override, or a config with another `state`."""
        state = self._under(mode)
        return None if state == self.state else self._change(state, now, "set by an operator")

    def reset(self, now: float, why: str) -> Transition | None:
        """Returns to closed without evidence, or to the config's state; None if it is in that state already."""
        state: BreakerState = "closed" if self._settings.state == "auto" else self._settings.state
        return None if state == self.state else self._change(state, now, why)

    def retry_after_s(self, now: float) -> float:
        """Returns the seconds until `try_acquire` may grant a permit, if no other call takes it first; 0 if it would
        now. Forced open has no known end: `open_for` stands in as a guess."""
        if self.state in _PASSING:
            return 0.0
        if self.state == "forced_open":
            return self._settings.open_for
        if self.state == "open":
            return max(0.0, self._opening.probe_at() - now)
        ends = sorted(ends_at for ends_at in self._leases.values() if ends_at > now)
        too_many = len(ends) - self._settings.half_open_calls
        return 0.0 if too_many < 0 else ends[too_many] - now

    def has_lease(self, _now: float) -> bool:
        """Returns whether this gateway may send probes: always, unless several gateways share a lease for that
        (`resilience.circuit_breaker.shared_breaker`)."""
        return True

    def awaits_lease(self, _now: float) -> bool:
        """Returns whether the next call would be a probe if this gateway had the lease, which may soon be granted."""
        return False

    def come_back_s(self, now: float) -> float:
        """Returns the seconds after which a refused call should return. While a probe is in flight that is the average
        duration of a success, or the age of the probe if it is longer, but not the end of its lease: otherwise all
        waiting clients would return a second late after an outage."""
        wait_s = self.retry_after_s(now)
        if wait_s <= 0 or self.state != "half_open":
            return wait_s
        probe_s = now - min(permit.sent_at for permit in self._leases)
        return min(wait_s, max(_PROBE_S, self._ok_takes_s, probe_s))

    def snapshot(self, now: float) -> BreakerSnapshot:
        window, opening = self._window, self._opening
        is_out = opening.outage_at is not None
        window.expire(now, self._settings.window)
        return BreakerSnapshot(
            state=self.state,
            is_forced=self.state not in _AUTOMATIC,
            consecutive_failures=self._run.length,
            calls=window.calls,
            failures=window.failures,
            slow_calls=window.slow_calls,
            failure_share=window.failures / window.calls if window.calls else 0.0,
            outage_at=opening.outage_at,
            opened_at=opening.began_at if is_out else None,
            why=self._why,
            probe_at=opening.probe_at() if is_out else None,
            generation=self._generation,
            leases=self._live_leases(now),
            transitions=self.history.entered(),
            latest=self.history.latest(),
        )

    def _new_probe(self, now: float) -> Permit:
        permit = Permit(self._generation, True, now)
        self._leases[permit] = now + self._opening.lease_s(now)
        return permit

    def _live_leases(self, now: float) -> int:
        return sum(ends_at > now for ends_at in self._leases.values())

    def _note_late(self, permit: Permit, signal: Signal, now: float, *, is_slow: bool) -> Transition | None:
        """Notes the end of a call of an earlier generation. Where successes take longer than failures, a call that was
        sent during the outage may succeed after the breaker opened: the success of a probe counts as such, that of
        another call ends the open period."""
        outage_from = self._opening.outage_at if permit.is_probe else self._outage_from
        if signal is not Signal.HEALTHY or outage_from is None or permit.sent_at < outage_from or is_slow:
            return None
        transition = self.end_opening(now, "a call from before the outage succeeded")
        return (self._judge_probe(permit, signal, False, now) or transition) if permit.is_probe else transition

    def _judge_probe(self, permit: Permit, signal: Signal, is_slow: bool, now: float) -> Transition | None:
        if signal is _UNHEALTHY:
            return self._change("open", now, "a probe failed", probe_took_s=now - permit.sent_at)
        if is_slow:
            return self._change("open", now, "a probe was slow")
        self._successes += 1
        permit.end = self._successes
        if self._successes < self._settings.success_threshold:
            return None
        return self._change("closed", now, "probes succeeded")

    def _conclude(self, now: float) -> Transition | None:
        """Opens the breaker if there is enough evidence."""
        if self.state != "closed":
            return None
        self._window.expire(now, self._settings.window)
        if (why := reason_of_outage(self._settings, self._run, self._window, now, self._ok_takes_s)) is not None:
            self._outage_from = inf if self._settings.sensitivity == "literal" else self._run.first_sent_at
            return self._change("open", now, why)
        why = reason_of_brownout(self._settings, self._window)
        return None if why is None else self._change("open", now, why, is_brownout=True)

    def _under(self, mode: BreakerMode) -> BreakerState:
        """Returns the state that a mode leads to from the present one."""
        if mode != "auto":
            return mode
        return self.state if self.state in _AUTOMATIC else "closed"

    def _change(
        self, after: BreakerState, now: float, why: str, *, is_brownout: bool = False, probe_took_s: float = 0.0
    ) -> Transition:
        before, chosen, refused = self.state, self._settings, self._opening.refused
        self._enter(after)
        if after == "open":
            self._opening.begin(
                now, chosen.open_for, chosen.max_open_for, chosen.open_jitter,
                has_early_probes=chosen.early_probes, is_brownout=is_brownout, probe_took_s=probe_took_s,
            )  # fmt: skip
        if before == "closed" or after not in _AUTOMATIC:
            self._why = why
        transition = Transition(before, after, now, why, refused)
        self.history.note(transition)
        return transition

    def _enter(self, state: BreakerState) -> None:
        """Enters a state. The only place where the state changes."""
        self.state = state
        self._generation += 1
        self.history.note_entry(state)
        self._leases = {}
        self._successes = 0
        if state not in ("open", "half_open"):
            # An outage may end as a brownout: otherwise the next five failures in a row would count as another outage.
            self._run = ConsecutiveFailures(AFTER_OUTAGE if self._opening.outage_at is not None else 0.0)
            self._window = SlidingWindow()
            self._outage_from = inf
            self._opening.end()
            self._why = None
