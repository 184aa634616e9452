"""How soon calls are served again after an outage, and the number of requests during it.

Breaker, gate and ramp are the gateway's own, with default settings; calls come evenly, nothing is retried, and there is
no other deployment. A dead provider fails each request at once, or lets it hang until the attempt's timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Literal

from benchmarks.storm.row import Row, promised
from benchmarks.storm.simulate import Timeline
from llm_guard.outcome import Signal
from llm_guard.resilience.capacity.gate import CapacitySettings, Ending, Gate, Slot, Ticket
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, Permit

Death = Literal["503 at once", "hangs"]

LENGTHS_S = (2.0, 5.0, 8.0, 16.0, 60.0, 600.0)
RATES_PER_S = (0.5, 5.0, 50.0, 200.0)
ANSWERS_S = (0.05, 2.0)
DEATHS: tuple[Death, ...] = ("503 at once", "hangs")
TIMEOUT_S = 10.0
"""Timeout of an attempt, after which a request that hangs is given up."""
QUIET_S, GRACE_S, WATCHED_S = 30.0, 10.0, 60.0
"""Traffic before the outage; time to recover; time in which the share of served calls is measured."""
SERVED = 0.95
_AT_ONCE_S = 0.02


@dataclass(frozen=True, slots=True)
class Outage:
    """One cell of the matrix."""

    length_s: float
    rate_per_s: float
    answer_s: float
    death: Death


@dataclass(slots=True)
class Course:
    """Results of one outage."""

    outage: Outage
    noticed_s: float = inf
    """Seconds from the recovery until the first successful request was sent."""
    sent: int = 0
    """Requests during the outage."""
    in_flight: int = 0
    """Requests in flight when the first failure returned, those from before the outage included."""
    calls: int = 0
    served: int = 0
    """Served calls of those that began from `GRACE_S` after the recovery on."""
    most_in_flight: int = 0
    """Maximum of requests in flight after the recovery, without those that still hang."""

    @property
    def share(self) -> float:
        return self.served / self.calls


def run(outages: Iterable[Outage], quiet_s: float = QUIET_S) -> list[Course]:
    """Runs each outage with a new breaker and a new gate that have seen `quiet_s` of traffic."""
    return [_Recovery(outage, quiet_s).run() for outage in outages]


def matrix(
    lengths_s: Sequence[float] = LENGTHS_S,
    rates_per_s: Sequence[float] = RATES_PER_S,
    answers_s: Sequence[float] = ANSWERS_S,
    deaths: Sequence[Death] = DEATHS,
) -> list[Outage]:
    """All combinations."""
    return [Outage(*cell) for cell in product(lengths_s, rates_per_s, answers_s, deaths)]


def most_requests(course: Course) -> float:
    """Maximum number of requests in an outage. At 200 calls/s the breaker opens after a quarter of a second of
    failures, not earlier; with longer responses after half a second: failures return before the responses of calls sent
    with them."""
    opens_after_s = min(0.5, max(0.25, course.outage.answer_s))
    return 20 + course.outage.rate_per_s * opens_after_s + course.in_flight + 1.5 * course.outage.length_s


def longest_notice_s(outage: Outage) -> float:
    """Maximum seconds until a recovery is noticed, including the interval between two calls."""
    return 1 + 0.05 * outage.length_s + 1 / outage.rate_per_s


def rows(courses: list[Course]) -> list[Row]:
    """Rows of A46: for each kind of outage and response time, the worst of all lengths and rates."""
    lines = []
    for death, answer_s in product(DEATHS, ANSWERS_S):
        found = [course for course in courses if (course.outage.death, course.outage.answer_s) == (death, answer_s)]
        if found:
            lines += _rows(f"the provider {death}, answers in {answer_s:g} s", found)
    return lines


def _rows(name: str, found: list[Course]) -> list[Row]:
    least = min(found, key=lambda each: each.share)
    latest = max(found, key=lambda each: each.noticed_s - longest_notice_s(each.outage))
    most = max(found, key=lambda each: each.sent - most_requests(each))
    return [
        promised("A46", f"{name}: calls served from 10 s after the recovery on, worst of {len(found)} outages",
                 f"≥ {SERVED:.0%}", f"{least.share:.1%} ({_named(least)})", least.share >= SERVED),
        promised("A46", f"{name}: the recovery from an outage of D s is noticed",
                 "≤ 1 s + 0.05 D + the time between two calls", f"{latest.noticed_s:.2f} s ({_named(latest)})",
                 latest.noticed_s <= longest_notice_s(latest.outage)),
        promised("A46", f"{name}: requests in an outage of D s, but for those in flight when the first failed",
                 "≤ 20 + 1.5 D + calls of 0.25 s, or of an answer's time up to 0.5 s",
                 f"{most.sent - most.in_flight} ({_named(most)})", most.sent <= most_requests(most)),
    ]  # fmt: skip


def _named(course: Course) -> str:
    return f"{course.outage.length_s:g} s at {course.outage.rate_per_s:g}/s"


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits in the queue."""

    began_at: float
    ticket: Ticket | None = None


class _Recovery:
    """One run. The outage begins at 0."""

    def __init__(self, outage: Outage, quiet_s: float) -> None:
        self._outage = outage
        self._begins_at = -quiet_s
        self._capacity = CapacitySettings()
        self._timeline = Timeline()
        self._timeline.now = self._begins_at
        self._breaker = Breaker(BreakerSettings())
        self._gate = Gate(self._capacity, self._begins_at)
        self._course = Course(outage)
        self._alarm_at = inf
        self._has_failed = False
        self._in_flight = 0
        """Requests in flight, without those from before the outage's end."""

    def run(self) -> Course:
        watched_until = self._outage.length_s + GRACE_S + WATCHED_S
        count = int((watched_until - self._begins_at) * self._outage.rate_per_s)
        self._arrive_and_go_on(0, count)
        self._timeline.run()
        return self._course

    def _arrive_and_go_on(self, number: int, count: int) -> None:
        if number + 1 < count:
            due_at = self._begins_at + (number + 1) / self._outage.rate_per_s
            self._timeline.at(due_at, partial(self._arrive_and_go_on, number + 1, count))
        self._arrive()

    def _arrive(self) -> None:
        now = self._timeline.now
        if now >= self._outage.length_s + GRACE_S:
            self._course.calls += 1
        permit = self._breaker.try_acquire(now)
        if permit is None:
            return
        slot = self._gate.try_enter(now)
        if slot is not None:
            self._send(now, permit, slot)
            return
        self._breaker.settle(permit, Signal.NO_EVIDENCE, now)
        self._wait(_Call(now))

    def _wait(self, call: _Call) -> None:
        now = self._timeline.now
        wait_s = self._gate.wait_s(now)
        if wait_s is None or wait_s > self._capacity.queue_timeout:
            return
        call.ticket = self._gate.enqueue(1, lambda: self._timeline.at(now, partial(self._turn, call)))
        self._timeline.after(self._capacity.queue_timeout, partial(self._leave, call))
        self._advance()

    def _leave(self, call: _Call) -> None:
        if call.ticket is not None and call.ticket.slot is None:
            self._gate.dequeue(call.ticket, self._timeline.now)

    def _turn(self, call: _Call) -> None:
        now, ticket = self._timeline.now, call.ticket
        if ticket is None or ticket.slot is None:
            return
        permit = self._breaker.try_acquire(now)
        if permit is None:
            self._gate.dequeue(ticket, now)
            self._advance()
            return
        self._send(call.began_at, permit, ticket.slot)

    def _advance(self) -> None:
        at = self._gate.dispatch(self._timeline.now)
        if at is not None and at != self._alarm_at:
            self._alarm_at = at
            self._timeline.at(at, self._advance)

    def _send(self, began_at: float, permit: Permit, slot: Slot) -> None:
        now, outage = self._timeline.now, self._outage
        is_dead = 0 <= now < outage.length_s
        if is_dead:
            self._course.sent += 1
        elif now >= outage.length_s:
            self._course.noticed_s = min(self._course.noticed_s, now - outage.length_s)
            self._in_flight += 1
            self._course.most_in_flight = max(self._course.most_in_flight, self._in_flight)
        took_s = outage.answer_s
        if is_dead:
            took_s = _AT_ONCE_S if outage.death == "503 at once" else TIMEOUT_S
        self._timeline.after(took_s, partial(self._end, began_at, permit, slot, is_dead))

    def _end(self, began_at: float, permit: Permit, slot: Slot, is_failure: bool) -> None:
        now, outage = self._timeline.now, self._outage
        if is_failure and not self._has_failed:
            self._has_failed = True
            self._course.in_flight = self._gate.snapshot(now).in_flight
        if slot.entered_at >= outage.length_s:
            self._in_flight -= 1
        if not is_failure and began_at >= outage.length_s + GRACE_S:
            self._course.served += 1
        signal = Signal.UNHEALTHY if is_failure else Signal.HEALTHY
        transition = self._breaker.settle(permit, signal, now)
        if transition is not None and (transition.before, transition.after) == ("half_open", "closed"):
            self._gate.ramp(now, self._breaker.settings.slow_start)
        ending: Ending = "failed" if is_failure else "ok"
        if self._gate.exit(slot, now, ending, None if is_failure else outage.answer_s):
            self._advance()
