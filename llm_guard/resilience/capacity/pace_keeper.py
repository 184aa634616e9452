"""The keeper's side of a pace that the gateways of a fleet share: one estimator of the provider's rate, and one queue
of the calls that wait anywhere.

Reads the reports of all gateways, and decides which of their calls go next. It is run at each exchange only; in between
grants would not reach anyone. `resilience.capacity.pace_sharing` decides which gateway is the keeper.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from llm_guard.resilience.capacity.fair_queue import Caller, Ticket
from llm_guard.resilience.capacity.gate import Paces
from llm_guard.resilience.capacity.pace_report import (
    Membership,
    PaceDecision,
    PaceEvent,
    PaceGrant,
    PaceReport,
    PaceState,
    WaitingCalls,
)
from llm_guard.resilience.capacity.pacing import Pace, PacerSnapshot, PaceSnapshot
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.wait_queue import WaitQueue

_Key = tuple[int, str]
"""Priority and source."""

_LATE_S = 0.4
"""From a grant until the keeper knows that the call went: four exchanges at most."""
_CATCH_UP_S = 0.5
"""Grants of so many seconds at most are made up for after a late exchange."""


@dataclass(slots=True, eq=False)
class _Ticket(Ticket):
    """A call that waits at a gateway."""

    replica: str = ""


class _Member:
    """What the keeper knows of one gateway."""

    __slots__ = ("first", "grants", "in_flight", "read", "tickets")

    def __init__(self, read: int) -> None:
        self.read = read
        self.first = 0
        self.grants = deque[PaceGrant]()
        self.tickets: dict[_Key, deque[_Ticket]] = {}
        self.in_flight = 0


class PaceKeeper:
    """Follows `note` for each gateway, `keep` and `advance`; then `decision` is current."""

    def __init__(self, settings: CapacitySettings, term: int, replica: str, now: float) -> None:
        """`replica` is the id of the keeper."""
        self.settings = settings
        self.term = term
        self._replica = replica
        self._paces = Paces(now, _LATE_S)
        self._queue = WaitQueue()
        self._members: dict[str, _Member] = {}
        self._due_at = now

    @property
    def is_active(self) -> bool:
        """True while anything limits calls, or calls wait."""
        apart = self._paces.apart
        return bool(self._queue.length) or self._paces.free.is_paced or (apart is not None and apart.pace.is_paced)

    def begin_at(self, decision: PaceDecision, age_s: float, now: float) -> None:
        """Continues where another keeper has ended, whose latest decision is `age_s` old."""
        if decision.apart is not None:
            self._paces.begin_at(_as_of(decision.apart, age_s, now), 1, decision.callers, now)
        self._paces.begin_at(_as_of(decision.free, age_s, now), 1, (), now)

    def note(self, replica: str, report: PaceReport, now: float) -> None:
        """Reads the report of a gateway."""
        member = self._members.get(replica)
        if member is None:
            member = self._members[replica] = _Member(report.first)
            if report.rate is not None:  # it has kept a part of the rate
                self._paces.begin_at(_at_rate(report.rate), 1, report.callers, now)
        if (report.term, report.keeper) == (self.term, self._replica):
            while member.grants and member.first < report.received:
                member.grants.popleft()
                member.first += 1
        member.in_flight = report.in_flight
        for event in report.events[max(0, member.read - report.first) :]:
            self._apply(event, now)
        member.read = max(member.read, report.first + len(report.events))
        self._queue_calls(replica, member, report.waiting)

    def keep(self, replicas: Collection[str], now: float) -> None:
        """Forgets all gateways but these."""
        for replica in self._members.keys() - set(replicas):
            member = self._members.pop(replica)
            for tickets in member.tickets.values():
                for ticket in tickets:
                    self._queue.remove(ticket)
            for grant in member.grants:
                self._paces.of_known(grant.source).return_grant(grant.granted_at, now)

    def advance(self, now: float) -> None:
        """Grants what has become due since the last time."""
        at = min(now, max(self._due_at, now - _CATCH_UP_S))
        while (next_at := self._dispatch(at)) <= now:
            at = next_at
        self._due_at = now if next_at == inf else next_at

    def decision(self, now: float) -> PaceDecision:
        paces = self._paces
        apart = paces.apart
        return PaceDecision(
            self.term,
            self._replica,
            now,
            {replica: Membership(one.read, one.first, tuple(one.grants)) for replica, one in self._members.items()},
            _state(paces.free, now),
            None if apart is None else _state(apart.pace, now),
            () if apart is None else apart.callers,
            apart is not None and apart.has_all,
            self._queue.length,
        )

    def _apply(self, event: PaceEvent, now: float) -> None:
        source, settings, waiting = event.source, self.settings, self._queue.length
        if event.kind == "entered":
            self._paces.of(source, now).note_entered(now)
            return
        pace, granted_at = self._paces.of_known(source), event.granted_at
        # All reports are late by about as much, so the times between them are right. A hold waits for its own probe.
        is_held = pace.hold_opens_at() > -inf
        entered_at = granted_at if is_held and granted_at is not None else now - event.seconds
        match event.kind:
            case "ok" | "accepted":
                is_ok = event.kind == "ok"
                self._paces.note_accepted(source, entered_at, settings, waiting, now, is_ok=is_ok)
            case "rate_limited":
                has_waited = granted_at is not None
                self._paces.note_rate_limited(source, entered_at, settings, now, has_waited=has_waited)
            case "unused":
                pace.put_back(entered_at, now)
            case "ignored":
                pace.note_unused(entered_at)
            case _:
                self._apply_rest(event, pace, now)

    def _apply_rest(self, event: PaceEvent, pace: Pace, now: float) -> None:
        match event.kind:
            case "returned":
                pace.return_grant(now if event.granted_at is None else event.granted_at, now)
            case "denied":
                for _ in range(event.count):
                    pace.note_denied(now)
            case "retry_after":
                pace.note_retry_after(now + event.seconds, now, now)
                self._paces.join_if_limited(now)
            case "hold_ended":
                self._paces.end_holds(now)
            case "reset":
                self._paces.reset(now)
            case _:
                if event.hint is not None:
                    in_flight = sum(member.in_flight for member in self._members.values())
                    pace.note_hint(event.hint, self._queue.length, in_flight, now - event.seconds, now)

    def _queue_calls(self, replica: str, member: _Member, waiting: Collection[WaitingCalls]) -> None:
        """Queues as many calls as wait at the gateway and have no grant on its way."""
        wanted = Counter({(one.priority, one.source): one.count for one in waiting})
        weights = {(one.priority, one.source): one.weight for one in waiting}
        wanted.subtract((grant.priority, grant.source) for grant in member.grants)
        for key in wanted.keys() | member.tickets.keys():
            priority, source = key
            tickets = member.tickets.setdefault(key, deque())
            while len(tickets) < wanted[key]:
                # Clients with a key are known at each gateway. The others may be many: each gateway has a turn.
                caller = Caller(f"key {source}", weights[key]) if source else Caller(replica)
                ticket = _Ticket(priority, lambda: None, caller, source=source, replica=replica)
                self._queue.add(ticket)
                tickets.append(ticket)
            while len(tickets) > max(0, wanted[key]):
                self._queue.remove(tickets.pop())
            if not tickets:
                del member.tickets[key]

    def _dispatch(self, now: float) -> float:
        """Grants what may go at that instant; returns the instant at which to call again, inf: once more calls
        wait."""
        next_at = inf
        for is_apart in (False, True):
            only = self._paces.only(is_apart=is_apart)
            apart = self._paces.apart
            pace = apart.pace if is_apart and apart is not None else self._paces.free
            while self._queue.has_selected(only):
                opens_at = pace.opens_at(now)
                if opens_at > now:
                    next_at = min(next_at, opens_at)
                    break
                self._grant(self._queue.take_selected(only, now=now), pace, now)
        return next_at

    def _grant(self, ticket: Ticket, pace: Pace, now: float) -> None:
        assert isinstance(ticket, _Ticket)  # noqa: S101  # no others are added
        pace.grant(self.settings, self._queue.length, now)
        member = self._members[ticket.replica]
        key = ticket.priority, ticket.source
        member.tickets[key].popleft()
        member.grants.append(PaceGrant(ticket.priority, ticket.source, now))


def _state(pace: Pace, now: float) -> PaceState:
    seen = pace.snapshot(now)
    pacer = seen.pacer
    return PaceState(
        pacer.rate,
        pacer.cause,
        None if pacer.since is None else now - pacer.since,
        None if seen.held_until is None else seen.held_until - now,
        None if seen.held_since is None else now - seen.held_since,
        seen.is_probing,
    )


def _as_of(state: PaceState, age_s: float, now: float) -> PaceSnapshot:
    pacer = PacerSnapshot(state.rate, -inf, state.cause, None, is_probing=state.is_probing)
    held_until = None if state.held_s is None else now - age_s + state.held_s
    return PaceSnapshot(pacer, held_until, None, is_probing=state.is_probing)


def _at_rate(rate: float) -> PaceSnapshot:
    return PaceSnapshot(PacerSnapshot(rate, -inf, "rate_limits", None, is_probing=False), None, None, is_probing=False)
