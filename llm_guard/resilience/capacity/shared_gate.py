"""A gate whose pace is shared by the gateways of a fleet: one of them, the keeper, decides for all.

While a provider limits calls, the gate reports what becomes of its calls (`resilience.capacity.pace_report`). As soon
as the keeper has heard of it, its waiting calls wait for grants. Otherwise it paces its calls by itself, like any gate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace

from llm_guard.resilience.capacity.fair_queue import Slot, Ticket
from llm_guard.resilience.capacity.gate import Ending, Gate
from llm_guard.resilience.capacity.granted_pace import GrantedPace, GrantedPaces
from llm_guard.resilience.capacity.pace_report import (
    PaceDecision,
    PaceEvent,
    PaceEventKind,
    PaceGrant,
    PaceReport,
    WaitingCalls,
)
from llm_guard.resilience.capacity.pacing import Pace
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
from llm_guard.resilience.capacity.settings import CapacitySettings

ACTIVE_S = 60.0
"""The keeper is told of all calls for so long after a 429."""
_MOST_EVENTS = 4000
_MOST_WAITING = 5000


class SharedGate(Gate):
    """See the module. `report` and `follow` are for the exchanges with the other gateways."""

    __slots__ = (
        "_events", "_first", "_granted", "_hint", "_hint_at", "_is_reporting", "_keeper", "_kept_rate", "_received",
        "_term", "follows",
    )  # fmt: skip

    def __init__(self, settings: CapacitySettings, now: float) -> None:
        super().__init__(settings, now)
        self.follows = False
        """True if its calls wait for grants."""
        self._is_reporting = False
        self._events = deque[PaceEvent]()
        self._first = 0
        self._granted: dict[float, list[PaceGrant]] = {}
        """Grants of the calls in flight, by the instant at which they entered."""
        self._hint: PaceEvent | None = None
        """The latest rate-limit headers, not reported yet."""
        self._hint_at = now
        self._kept_rate = False
        """True if the rate is a part of that of a fleet."""
        self._keeper = ""
        self._term = self._received = 0

    def exit(self, slot: Slot, now: float, outcome: Ending, latency_s: float | None) -> bool:
        if not self._is_reporting:
            return Gate.exit(self, slot, now, outcome, latency_s)  # `super()` takes as long as the rest of this
        is_back = slot.is_back
        is_waited_for = Gate.exit(self, slot, now, outcome, latency_s)
        if not is_back:
            self._note_end(slot, _KINDS[outcome], now)
        return is_waited_for

    def dequeue(self, ticket: Ticket, now: float) -> None:
        slot = ticket.slot
        is_used = slot is not None and not slot.is_back
        Gate.dequeue(self, ticket, now)
        if self._is_reporting and is_used and slot is not None:
            self._note_end(slot, "unused", now)

    def note_hint(self, hint: RateHint, sent_at: float, now: float, source: str = "") -> None:
        Gate.note_hint(self, hint, sent_at, now, source)
        if self._is_reporting and self._settings.pacing:
            self._hint, self._hint_at = PaceEvent("hint", source, hint=hint), sent_at

    def note_retry_after(self, until: float, now: float, source: str = "") -> None:
        Gate.note_retry_after(self, until, now, source)
        self._note(PaceEvent("retry_after", source, until - now))

    def end_hold(self, now: float) -> None:
        Gate.end_hold(self, now)
        self._note(PaceEvent("hold_ended"))

    def reset_pace(self, now: float) -> None:
        Gate.reset_pace(self, now)
        self._note(PaceEvent("reset"))

    # Exchanges

    def is_active(self, now: float) -> bool:
        """Returns whether the other gateways should know of its pace."""
        if not self._settings.pacing:
            return False
        return now < self._limited_at + ACTIVE_S or (not self.follows and self._paces.free.is_paced)

    def report(self, now: float) -> PaceReport:
        """Returns what to publish; from now on it notes what becomes of its calls."""
        self._is_reporting = True
        self._return_excess(now)
        for pace in self._grants():
            if pace.denied:
                self._note(PaceEvent("denied", pace.source, count=pace.denied))
                pace.denied = 0
        if self._hint is not None:
            self._note(replace(self._hint, seconds=now - self._hint_at))
            self._hint = None
        rate, callers = self._kept(now)
        return PaceReport(
            self.is_active(now), self._term, self._keeper, self._received, self._first, tuple(self._events),
            self._waiting_calls(now), self._in_flight, rate, callers,
        )  # fmt: skip

    def follow(self, decision: PaceDecision, replica: str, age_s: float, now: float) -> None:
        """Follows a keeper that has heard of this gateway, `replica`; `age_s`: since it published the decision. Call
        `dispatch` afterwards."""
        if (decision.term, decision.keeper) != (self._term, self._keeper):
            self._change_keeper(decision)
        paces = self._paces
        if not isinstance(paces, GrantedPaces):
            paces = self._paces = GrantedPaces(self._queue, now)
            self.follows, self._kept_rate = True, False
        member = decision.members[replica]
        while self._events and self._first < member.read:
            self._events.popleft()
            self._first += 1
        paces.update(decision, now - age_s, now)
        for grant in member.grants[max(0, self._received - member.first) :]:
            paces.receive(grant, now)
        self._received = max(self._received, member.first + len(member.grants))

    def work_alone(self, gateways: int, now: float) -> None:
        """Begins to pace calls by itself, with an equal part of the rate of all `gateways`. Call `dispatch`
        afterwards."""
        paces = self._paces
        if isinstance(paces, GrantedPaces):
            self._paces = paces.alone(gateways, self._settings, now)
            self.follows, self._kept_rate = False, True

    def end_report(self) -> None:
        """Notes nothing more: no keeper can be told."""
        self._is_reporting = False
        self._first += len(self._events)
        self._events.clear()
        self._granted.clear()
        self._hint = None

    def _grant(self, pace: Pace, source: str, now: float) -> Slot:
        slot = super()._grant(pace, source, now)
        if self._is_reporting:
            used = pace.used if isinstance(pace, GrantedPace) else None
            if used is not None:
                self._granted.setdefault(now, []).append(used)
            self._note(PaceEvent("entered", source))
        return slot

    def _note_end(self, slot: Slot, kind: PaceEventKind, now: float) -> None:
        at = slot.entered_at
        grants = self._granted.get(at)
        granted_at = None
        if grants:  # calls that entered at one instant are alike
            granted_at = grants.pop().granted_at
            if not grants:
                del self._granted[at]
        self._note(PaceEvent(kind, slot.source, now - at, granted_at))

    def _note(self, event: PaceEvent) -> None:
        if not self._is_reporting:
            return
        if len(self._events) >= _MOST_EVENTS:
            self._events.popleft()
            self._first += 1
        self._events.append(event)

    def _change_keeper(self, decision: PaceDecision) -> None:
        """Forgets the grants of another keeper."""
        self._term, self._keeper, self._received = decision.term, decision.keeper, 0
        self._granted.clear()
        self._events = deque(replace(event, granted_at=None) for event in self._events)
        for pace in self._grants():
            pace.grants.clear()

    def _return_excess(self, now: float) -> None:
        for pace in self._grants():
            waiting = sum(self._paces.of_known(ticket.source) is pace for ticket in self._queue.tickets())
            for grant in pace.take_excess(waiting, now):
                self._note(PaceEvent("returned", grant.source, 0.0, grant.granted_at))

    def _grants(self) -> Collection[GrantedPace]:
        return self._paces.all if isinstance(self._paces, GrantedPaces) else ()

    def _waiting_calls(self, now: float) -> tuple[WaitingCalls, ...]:
        """Returns the calls that could go with a grant: not more than there are slots."""
        limit = self._limiter.limit(now)
        room = _MOST_WAITING if limit is None else min(_MOST_WAITING, limit - self._in_flight)
        room -= sum(len(pace.grants) for pace in self._grants())
        counts: dict[tuple[int, str], int] = {}
        weights: dict[tuple[int, str], float] = {}
        for ticket in self._queue.tickets():
            if room < 1:
                break  # more could not go before the next exchange
            room -= 1
            key = ticket.priority, ticket.source
            weights[key] = ticket.caller.weight if ticket.source else 1.0
            counts[key] = counts.get(key, 0) + 1
        return tuple(WaitingCalls(*key, count, weights[key]) for key, count in counts.items())

    def _kept(self, now: float) -> tuple[float | None, tuple[str, ...]]:
        if not self._kept_rate:
            return None, ()
        pace, callers = self._paces.shown()
        return pace.snapshot(now).pacer.rate, callers or ()


_KINDS: dict[Ending, PaceEventKind] = {
    "ok": "ok", "overloaded": "accepted", "failed": "accepted", "rate_limited": "rate_limited", "ignored": "ignored",
}  # fmt: skip
