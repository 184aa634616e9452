"""Gateways that share the pace of calls to one provider with a rate limit: the gates and the keeper of the fleet, on
one timeline.

Exchanges take place ten times a second, as with a store; each reads what the others have published before.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf

from benchmarks.storm.row import Row, promised
from benchmarks.storm.simulate import Timeline
from llm_guard.resilience.capacity.gate import CapacitySettings, Slot, Ticket
from llm_guard.resilience.capacity.pace_report import PaceReport
from llm_guard.resilience.capacity.pace_sharing import KEEPER_LEASE_S, PaceSharing
from llm_guard.resilience.capacity.shared_gate import SharedGate

_SCENARIO = "replicas"
_LIMITS = (5.0, 40.0, 200.0)
_GATEWAYS = (1, 3, 10)
_LEAST_GOODPUT = 0.97
_MOST_PER_ANSWER = 1.06
_MOST_AFTER_DEATH = 1.15
_OUTAGE_S = 30.0
_EXCHANGE_S = 0.1
_TAKES_S = 0.3
_REFUSAL_S = 0.02
_ATTEMPTS = 4
_LONGEST_WAIT_S = 30.0
_WARM_S = 40.0
_SECONDS = 60.0
_STALE_S = 3.0


@dataclass(slots=True)
class Provider:
    """Accepts `rate` requests a second, and as many at once; answers 429 to the rest."""

    rate: float
    tokens: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.rate

    def accepts(self, now: float) -> bool:
        self.tokens = min(max(1.0, self.rate), self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(slots=True)
class Counts:
    """What has happened so far."""

    sent: int = 0
    answered: int = 0
    limited: int = 0
    lost: int = 0
    waits: list[float] = field(default_factory=list)

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.sent - before.sent, self.answered - before.answered, self.limited - before.limited,
            self.lost - before.lost, self.waits[len(before.waits) :],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """Without a store from `begin` to `end`; `dies`: the keeper is frozen then instead."""

    begin: float = inf
    end: float = inf
    dies: bool = False


@dataclass(slots=True)
class _Gateway:
    gate: SharedGate
    sharing: PaceSharing
    alarm_at: float = inf
    is_alone: bool = True


class Fleet:
    """Gateways with Poisson arrivals in front of one provider."""

    def __init__(
        self,
        gateways: int,
        offered: float,
        limit: float,
        *,
        is_shared: bool,
        seed: int = 7,
        trouble: Trouble | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.counts = Counts()
        self._settings = CapacitySettings()
        self._draw = random.Random(seed)
        self._provider = Provider(limit)
        self._offered = offered
        self._trouble = trouble or Trouble()
        self._frozen = -1
        self.gateways = [
            _Gateway(SharedGate(self._settings, 0.0), PaceSharing(f"gateway-{number:02}")) for number in range(gateways)
        ]
        self._published: dict[str, tuple[float, PaceReport]] = {}
        self._lease = ("", -inf)
        self.timeline.after(self._draw.expovariate(offered), self._arrive)
        if is_shared and gateways > 1:
            for number in range(gateways):
                self.timeline.at(self._draw.random() * _EXCHANGE_S, partial(self._exchange, number))

    def measure(self, begin: float, end: float) -> Counts:
        """Runs until `end`; returns what has happened since `begin`."""
        self.timeline.run(begin)
        before = replace(self.counts, waits=list(self.counts.waits))
        self.timeline.run(end)
        return self.counts.since(before)

    def _arrive(self) -> None:
        self.timeline.after(self._draw.expovariate(self._offered), self._arrive)
        running = [number for number in range(len(self.gateways)) if number != self._frozen]
        self._attempt(self._draw.choice(running), self.timeline.now, 1)

    def _attempt(self, number: int, arrived_at: float, attempt: int) -> None:
        gate, now = self.gateways[number].gate, self.timeline.now
        slot = gate.try_enter(now)
        if slot is not None:
            self._send(number, slot, arrived_at, attempt)
            return
        wait_s = gate.wait_s(now)
        if wait_s is None or wait_s > _LONGEST_WAIT_S:
            self.counts.lost += 1
            return
        tickets: list[Ticket] = []
        ticket = gate.enqueue(1, lambda: self._granted(number, tickets[0], arrived_at, attempt))
        if ticket is None:
            self.counts.lost += 1
            return
        tickets.append(ticket)
        self._dispatch(number)

    def _granted(self, number: int, ticket: Ticket, arrived_at: float, attempt: int) -> None:
        assert ticket.slot is not None
        self._send(number, ticket.slot, arrived_at, attempt)

    def _send(self, number: int, slot: Slot, arrived_at: float, attempt: int) -> None:
        self.counts.sent += 1
        is_ok = self._provider.accepts(self.timeline.now)
        takes_s = _TAKES_S * self._draw.uniform(0.5, 1.5) if is_ok else _REFUSAL_S
        self.timeline.after(takes_s, partial(self._end, number, slot, arrived_at, attempt, is_ok))

    def _end(self, number: int, slot: Slot, arrived_at: float, attempt: int, is_ok: bool) -> None:
        gate, now = self.gateways[number].gate, self.timeline.now
        gate.exit(slot, now, "ok" if is_ok else "rate_limited", _TAKES_S if is_ok else None)
        if is_ok:
            self.counts.answered += 1
            self.counts.waits.append(now - arrived_at)
        else:
            self.counts.limited += 1
            if attempt < _ATTEMPTS:
                pause_s = self._draw.uniform(0.05, 0.3) * 2**attempt
                self.timeline.after(pause_s, partial(self._attempt, number, arrived_at, attempt + 1))
            else:
                self.counts.lost += 1
        self._dispatch(number)

    def _dispatch(self, number: int) -> None:
        one = self.gateways[number]
        next_at = one.gate.dispatch(self.timeline.now)
        if next_at is not None and (next_at < one.alarm_at or one.alarm_at <= self.timeline.now):
            one.alarm_at = next_at
            self.timeline.at(next_at, partial(self._wake, number, next_at))

    def _wake(self, number: int, at: float) -> None:
        if self.gateways[number].alarm_at == at:
            self.gateways[number].alarm_at = inf
        self._dispatch(number)

    def _exchange(self, number: int) -> None:
        now, one = self.timeline.now, self.gateways[number]
        self.timeline.after(_EXCHANGE_S * self._draw.uniform(0.9, 1.2), partial(self._exchange, number))
        is_in_trouble = self._trouble.begin <= now < self._trouble.end
        if is_in_trouble and self._trouble.dies:
            if self._frozen < 0 and one.sharing.is_keeper:
                self._frozen = number
            if number == self._frozen:
                return
        elif is_in_trouble:
            one.is_alone = True
            one.sharing.work_alone(one.gate, len(self.gateways), now)
            self._dispatch(number)
            return
        self._share(number, one, now)

    def _share(self, number: int, one: _Gateway, now: float) -> None:
        replica = f"gateway-{number:02}"
        own = one.sharing.report(one.gate, now)
        self._published[replica] = now, own
        others = {
            name: (now - at, report)
            for name, (at, report) in self._published.items()
            if name != replica and now - at <= _STALE_S
        }
        holder, ends_at = self._lease
        has_lease = one.sharing.wants_lease(now) and (holder == replica or ends_at <= now)
        if has_lease:
            self._lease = replica, now + KEEPER_LEASE_S
        one.sharing.conclude(one.gate, self._settings, others, len(self.gateways), now, has_lease=has_lease)
        if one.sharing.is_keeper:
            self._published[replica] = now, one.sharing.report(one.gate, now)
        self._dispatch(number)


def rows() -> list[Row]:
    """Gateways with one pace, with the store, without it, and after the death of the keeper."""
    return [*_limits(), *_without_store(), _after_death()]


def _limits() -> Iterator[Row]:
    for limit, over in product(_LIMITS, (1.1, 2.0)):
        runs = [_run(gateways, limit, over, Trouble())[0] for gateways in _GATEWAYS]
        alone = Fleet(_GATEWAYS[-1], over * limit, limit, is_shared=False).measure(_WARM_S, _WARM_S + _SECONDS)
        goodput = [run.answered / _SECONDS / limit for run in runs]
        per_answer = [run.sent / run.answered for run in runs]
        lost = [run.lost / (run.lost + run.answered) for run in runs]
        yield promised(
            _SCENARIO, f"1, 3 and 10 gateways, {over * limit:g} calls/s before a limit of {limit:g}/s: answers "
            "relative to the limit, requests per answer", f"≥ {_LEAST_GOODPUT}, ≤ {_MOST_PER_ANSWER}",
            f"{_listed(goodput)}, {_listed(per_answer)}; ten that share nothing "
            f"{alone.answered / _SECONDS / limit:.2f}, {alone.sent / max(1, alone.answered):.2f}",
            min(goodput) >= _LEAST_GOODPUT and max(per_answer) <= _MOST_PER_ANSWER,
            f"calls lost: {_listed(lost)}; ten that share nothing {alone.lost / (alone.lost + alone.answered):.2f}",
        )  # fmt: skip


def _without_store() -> Iterator[Row]:
    trouble = Trouble(_WARM_S, _WARM_S + _OUTAGE_S)
    for gateways in _GATEWAYS[1:]:
        during, after = _run(gateways, 40.0, 1.1, trouble)
        goodput, limited = during.answered / _OUTAGE_S / 40.0, during.limited / _OUTAGE_S
        yield promised(
            _SCENARIO, f"{gateways} gateways, 44 calls/s before 40/s, no store for 30 s: answers relative to the "
            "limit, 429s/s", "≥ 0.75, ≤ 2", f"{goodput:.2f}, {limited:.2f}; in the 30 s after it "
            f"{after.answered / _OUTAGE_S / 40.0:.2f}, {after.limited / _OUTAGE_S:.2f}",
            goodput >= 0.75 and limited <= 2.0,
        )  # fmt: skip


def _after_death() -> Row:
    during, _ = _run(10, 40.0, 1.1, Trouble(_WARM_S, _WARM_S + _OUTAGE_S, dies=True))
    goodput, per_answer = during.answered / _OUTAGE_S / 40.0, during.sent / during.answered
    return promised(
        _SCENARIO, "10 gateways, 44 calls/s before 40/s, the 30 s after the death of the keeper: answers relative to "
        "the limit, requests per answer", f"≥ 0.9, ≤ {_MOST_AFTER_DEATH}", f"{goodput:.2f}, {per_answer:.2f}",
        goodput >= 0.9 and per_answer <= _MOST_AFTER_DEATH,
    )  # fmt: skip


def _run(gateways: int, limit: float, over: float, trouble: Trouble) -> tuple[Counts, Counts]:
    """Returns what happened after the warm-up, or during the trouble, and in the half minute after that."""
    fleet = Fleet(gateways, over * limit, limit, is_shared=True, trouble=trouble)
    length_s = _SECONDS if trouble.begin == inf else _OUTAGE_S
    during = fleet.measure(_WARM_S, _WARM_S + length_s)
    return during, fleet.measure(_WARM_S + length_s, _WARM_S + length_s + _OUTAGE_S)


def _listed(figures: Iterable[float]) -> str:
    return " / ".join(f"{figure:.2f}" for figure in figures)
