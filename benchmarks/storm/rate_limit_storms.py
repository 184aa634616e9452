"""Storms of rate limits: what a gate with its pacer admits, and what it sends.

In a storm the provider responds to every request with 429 for a while. Calls arrive at random, wait in the queue like
in the gateway, and are retried after a 429. Only the gate and the pacer are simulated; the whole call path is measured
elsewhere.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from benchmarks.storm.row import Row, promised
from benchmarks.storm.simulate import Timeline
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate, Slot, Ticket
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, rate_hint

LENGTHS_S = (5.0, 16.0, 60.0, 600.0)
RATES = (0.5, 5.0, 50.0, 200.0)
HINTS = (None, 20.0)
"""Retry-After in seconds; None: a bare 429."""
TAKEN = ((5.0, 2.5), (5.0, 1.0), (50.0, 20.0), (200.0, 100.0), (200.0, 20.0))
"""Calls offered and calls accepted, a second."""
_MOST_HINT_S = 60.0
_WELL_BEFORE_S = 30.0
_OPEN_AFTER_S = 10.0
_WATCHED_S = 60.0
_ATTEMPTS = 4
_FIRST_BACKOFF_S = 0.5
_HELD_FROM_S = 2.0


class Provider(Protocol):
    """Accepts a request, or responds with 429."""

    def accepts(self, now: float) -> bool: ...

    def retry_after_s(self, now: float) -> float | None:
        """Retry-After of a 429; None: it has none."""

    def headers(self, _now: float) -> dict[str, str]:
        """Rate-limit headers of the response to a request that has just arrived."""


@dataclass(slots=True)
class Stormy:
    """Answers 429 from `begin` to `end`, to all requests or a share; otherwise accepts `rate` of them a second."""

    begin: float
    end: float
    hint_s: float | None = None
    rate: float = inf
    burst: float = 10.0
    share: float = 1.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    """Draws the requests that are refused."""
    _tokens: float = 0.0
    _at: float = 0.0

    def accepts(self, now: float) -> bool:
        if self.begin <= now < self.end:
            return self.dice.random() >= self.share
        if self.rate == inf or now < self.begin:
            return True
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def retry_after_s(self, now: float) -> float | None:
        return self.hint_s if now >= self.begin else None

    def headers(self, _now: float) -> dict[str, str]:
        return {}


@dataclass(slots=True)
class BucketQuota:
    """A fixed number of requests a minute, refilled steadily."""

    per_minute: float
    has_hint: bool = False
    capacity: float = 0.0
    has_headers: bool = False
    _tokens: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        self.capacity = self.capacity or self.per_minute
        self._tokens = self.capacity

    def accepts(self, now: float) -> bool:
        self._tokens = min(self.capacity, self._tokens + (now - self._at) * self.per_minute / 60)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def retry_after_s(self, now: float) -> float | None:
        return self._at - now + (1 - self._tokens) * 60 / self.per_minute if self.has_hint else None

    def headers(self, _now: float) -> dict[str, str]:
        if not self.has_headers:
            return {}
        return _headers(self.capacity, self._tokens, (self.capacity - self._tokens) * 60 / self.per_minute)


@dataclass(slots=True)
class WindowQuota:
    """A fixed number of requests in each minute of the clock."""

    per_minute: float
    has_hint: bool = False
    has_headers: bool = False
    _window: int = -1
    _used: int = 0

    def accepts(self, now: float) -> bool:
        window = int((now + 17.0) // 60)
        if window != self._window:
            self._window, self._used = window, 0
        if self._used >= self.per_minute:
            return False
        self._used += 1
        return True

    def retry_after_s(self, now: float) -> float | None:
        return self._reset_s(now) if self.has_hint else None

    def headers(self, _now: float) -> dict[str, str]:
        return _headers(self.per_minute, self.per_minute - self._used, self._reset_s(_now)) if self.has_headers else {}

    def _reset_s(self, now: float) -> float:
        return (self._window + 1) * 60 - 17.0 - now


def _headers(limit: float, remaining: float, reset_s: float) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(int(limit)),
        "x-ratelimit-remaining-requests": str(int(remaining)),
        "x-ratelimit-reset-requests": f"{max(0.001, reset_s):.3f}s",
    }


@dataclass(slots=True, eq=False)
class _Call:
    arrived_at: float
    attempts: int = 0
    is_served: bool = False
    slot: Slot | None = None


class Run:
    """Calls, one gate and one provider on a virtual clock."""

    def __init__(self, provider: Provider, seed: int, answer_s: float = 0.3) -> None:
        self.timeline = Timeline()
        self.provider = provider
        self.answer_s = answer_s
        self.settings = CapacitySettings()
        self.gate = Gate(self.settings, 0.0)
        self.calls: list[_Call] = []
        self.sent_at: list[float] = []
        self.limited_at: list[float] = []
        self._dice = random.Random(seed)
        self._alarm_at = inf

    def offer(self, rate: float, begin: float, end: float) -> None:
        """Adds calls with Poisson arrivals."""
        at = begin
        while (at := at + self._dice.expovariate(rate)) < end:
            call = _Call(at)
            self.calls.append(call)
            self.timeline.at(at, partial(self._attempt, call))

    def served_share(self, begin: float, end: float = inf) -> float:
        """Share of the calls that arrived between the two times."""
        calls = [call for call in self.calls if begin <= call.arrived_at < end]
        return sum(call.is_served for call in calls) / len(calls) if calls else 1.0

    def limited_share(self, begin: float, end: float = inf) -> float:
        """429s per request, for those sent between the two times."""
        sent = sum(begin <= at < end for at in self.sent_at)
        return sum(begin <= at < end for at in self.limited_at) / sent if sent else 0.0

    def _attempt(self, call: _Call) -> None:
        now, gate = self.timeline.now, self.gate
        slot = gate.try_enter(now)
        if slot is not None:
            self._send(call, slot)
            return
        wait_s = gate.wait_s(now)
        if wait_s is None or wait_s > self.settings.queue_timeout:
            return
        tickets = deque[Ticket]()
        ticket = gate.enqueue(1, lambda: self._granted(call, tickets[0]))
        if ticket is None:
            return
        tickets.append(ticket)
        self.timeline.at(now + self.settings.queue_timeout, partial(self._leave, ticket))
        self._advance()

    def _granted(self, call: _Call, ticket: Ticket) -> None:
        if ticket.slot is not None:
            self._send(call, ticket.slot)

    def _leave(self, ticket: Ticket) -> None:
        if ticket.slot is None:
            self.gate.dequeue(ticket, self.timeline.now)
            self._advance()

    def _send(self, call: _Call, slot: Slot) -> None:
        call.attempts += 1
        now = self.timeline.now
        self.sent_at.append(now)
        is_accepted = self.provider.accepts(now)
        hint = rate_hint(self.provider.headers(now), now)
        if is_accepted:
            self.timeline.at(
                now + self.answer_s * self._dice.uniform(0.5, 1.5), partial(self._served, call, slot, hint)
            )
            return
        self.limited_at.append(now)
        hint_s = self.provider.retry_after_s(now)
        self.timeline.at(now + self._dice.uniform(0.02, 0.1), partial(self._limited, call, slot, hint, hint_s))

    def _served(self, call: _Call, slot: Slot, hint: RateHint | None) -> None:
        call.is_served = True
        self._note_hint(slot, hint)
        self.gate.exit(slot, self.timeline.now, "ok", self.timeline.now - slot.entered_at)
        self._advance()

    def _note_hint(self, slot: Slot, hint: RateHint | None) -> None:
        if hint is not None:
            self.gate.note_hint(hint, slot.entered_at, self.timeline.now)

    def _limited(self, call: _Call, slot: Slot, hint: RateHint | None, hint_s: float | None) -> None:
        now = self.timeline.now
        self.gate.exit(slot, now, "rate_limited", None)
        self._note_hint(slot, hint)
        if hint_s is not None and hint_s >= _HELD_FROM_S:
            self.gate.note_retry_after(now + min(hint_s, _MOST_HINT_S), now)
        if call.attempts < _ATTEMPTS and (hint_s or 0.0) <= self.settings.queue_timeout:
            wait_s = hint_s or _FIRST_BACKOFF_S * 2 ** (call.attempts - 1) * self._dice.uniform(0.7, 1.3)
            self.timeline.at(now + wait_s, partial(self._attempt, call))
        self._advance()

    def _advance(self) -> None:
        now = self.timeline.now
        again_at = self.gate.dispatch(now)
        if again_at is not None and not now < self._alarm_at <= again_at:
            self._alarm_at = again_at
            self.timeline.at(again_at, self._advance)


@dataclass(frozen=True, slots=True)
class Cell:
    """One storm: shares of the calls served and of the requests limited from ten seconds after it on."""

    name: str
    served: float
    limited: float


def storm(length_s: float, rate: float, hint_s: float | None, seed: int = 1) -> Cell:
    """Runs a storm of a provider that accepts everything before and after it."""
    end = _WELL_BEFORE_S + length_s
    open_at = end + min(hint_s or 0.0, _MOST_HINT_S) + _OPEN_AFTER_S
    run = Run(Stormy(_WELL_BEFORE_S, end, hint_s), seed)
    run.offer(rate, 0.0, open_at + _WATCHED_S)
    run.timeline.run()
    hint = "bare" if hint_s is None else f"Retry-After {hint_s:.0f} s"
    return Cell(f"{length_s:.0f} s, {rate:g}/s, {hint}", run.served_share(open_at), run.limited_share(open_at))


def rows() -> list[Row]:
    """Rows with the worst cell of all storms, and the worst share of a capacity that is used."""
    cells = [storm(length_s, rate, hint_s) for length_s in LENGTHS_S for rate in RATES for hint_s in HINTS]
    served, limited = min(cells, key=lambda cell: cell.served), max(cells, key=lambda cell: cell.limited)
    storms = promised(
        "429 storm", f"served from 10 s after a storm of 429s on, worst of {len(cells)} cells ({served.name})",
        "≥ 95 %, ≤ 5 % of requests meet a 429", f"{served.served:.1%}, {limited.limited:.1%}",
        served.served >= 0.95 and limited.limited <= 0.05,
    )  # fmt: skip
    return [storms, _partial_row()]


def used_share(rate: float, taken: float, hint_s: float | None, seed: int = 1) -> float:
    """Used share of a provider's capacity in the minute after a storm of 16 s, if it then accepts `taken` of `rate`
    calls a second."""
    end = _WELL_BEFORE_S + 16.0
    begin = end + min(hint_s or 0.0, _MOST_HINT_S) + _OPEN_AFTER_S
    run = Run(Stormy(_WELL_BEFORE_S, end, hint_s, taken), seed)
    run.offer(rate, 0.0, begin + _WATCHED_S)
    run.timeline.run()
    refused = set(run.limited_at)
    accepted = sum(begin <= at < begin + _WATCHED_S and at not in refused for at in run.sent_at)
    return accepted / _WATCHED_S / taken


def _partial_row() -> Row:
    shares = [used_share(rate, taken, hint_s) for rate, taken in TAKEN for hint_s in HINTS]
    return promised(
        "429 storm", "capacity used after a storm, of a provider that takes 10 to 50 % and adds a Retry-After of 20 s "
        f"to every 429, or none; worst of {len(shares)} cells",
        "≥ 90 %", f"{min(shares):.1%}", min(shares) >= 0.9,
    )  # fmt: skip
