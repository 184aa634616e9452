"""When a deployment is left alone, and how it is let back.

Owns one deployment's state, its evidence and its probes. Does not own what counts as healthy
(`outcome.FailureKind`) nor what a refused call does instead (`gateway.attempt_loop`).

    closed     everything passes; opens when the evidence is enough
    open       nothing passes until open_for is over; the next to ask then finds it half-open
    half_open  a few probes pass; enough successes close it, one failure opens it for twice as long
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from llm_guard.outcome import Signal
from llm_guard.policy.units import Count, Ratio, Seconds

BreakerState = Literal["closed", "open", "half_open"]

# A run of failures is evidence when a deployment that merely fails now and then would show one as long less
# often than once in a thousand windows.
_CHANCE = 0.001
# Fewer calls than this outside the run say nothing about how often the deployment fails otherwise.
_FEW_CALLS = 20
# Weight of the last call in the moving average of failures: its memory is some twenty calls.
_RECENT_SHARE = 1 / 20
_SLOTS = 10


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Durations in seconds."""

    consecutive_failures: Count = 5
    failure_rate: Ratio = 0.5
    window: Seconds = 60.0
    min_calls: Count = 20
    """Calls in the window before failure_rate is looked at."""
    open_for: Seconds = 30.0
    max_open_for: Seconds = 300.0
    half_open_calls: Count = 1
    """Probes out at the same time."""
    success_threshold: Count = 1


@dataclass(slots=True, eq=False)
class Permit:
    """Leave for one attempt; every permit is settled, once, whatever became of the attempt."""

    generation: int
    is_probe: bool
    _is_settled: bool = False

    def claim(self) -> bool:
        """True the first time."""
        is_first = not self._is_settled
        self._is_settled = True
        return is_first


@dataclass(frozen=True, slots=True)
class Transition:
    before: BreakerState
    after: BreakerState
    at: float
    why: str
    """A phrase for the log line."""


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    state: BreakerState
    consecutive_failures: int
    calls: int
    failures: int
    """Both within the window."""
    opened_at: float | None
    """When it last opened; None while closed."""
    probe_at: float | None
    """From when on probes pass; None while closed."""
    generation: int
    leases: int
    transitions: Mapping[BreakerState, int]
    """How often each state was entered since the start."""


class Breaker:
    """A circuit breaker on monotonic time; `settings` may be replaced at any moment.

    Every change of state begins a new generation; what permits of an earlier one report is ignored. A probe
    is a lease as long as the opening before it (at least 1 s): one that is never settled frees its place when
    the lease ends (a real router sat half-open for six days on one lost probe). A probe that outlives its
    lease is still evidence if the generation is still its own, so that answers slower than `open_for` can
    close the circuit.
    """

    __slots__ = (
        "_failed_recoveries", "_generation", "_leases", "_open_s", "_opened_at", "_recent_rate", "_run",
        "_state", "_successes", "_transitions", "_window", "settings",
    )  # fmt: skip

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self._state: BreakerState = "closed"
        self._generation = 0
        self._transitions: dict[BreakerState, int] = {"closed": 0, "open": 0, "half_open": 0}
        self._window = _Window()
        self._run = 0
        self._recent_rate = 0.0
        self._opened_at = 0.0
        self._open_s = 0.0
        self._failed_recoveries = 0
        self._leases: dict[Permit, float] = {}
        self._successes = 0

    def try_acquire(self, now: float) -> Permit | None:
        """A permit to be settled, or None: do not ask this deployment now."""
        if self._state == "closed":
            return Permit(self._generation, is_probe=False)
        if self._state == "open":
            if now < self._opened_at + self._open_s:
                return None
            self._change("half_open", now, "open_for is over")
        self._leases = {permit: ends_at for permit, ends_at in self._leases.items() if ends_at > now}
        if len(self._leases) >= self.settings.half_open_calls:
            return None
        permit = Permit(self._generation, is_probe=True)
        self._leases[permit] = now + max(1.0, self._open_s)
        return permit

    def settle(self, permit: Permit, signal: Signal, now: float) -> Transition | None:
        """Gives the permit back and takes its evidence; a second time for the same permit does nothing."""
        if not permit.claim() or permit.generation != self._generation:
            return None
        self._leases.pop(permit, None)
        if signal is Signal.NO_EVIDENCE:
            return None
        if permit.is_probe:
            return self._judge_probe(signal, now)
        return self._count(signal, now)

    def retry_after_s(self, now: float) -> float:
        """Seconds until `try_acquire` may grant again, unless others are quicker; 0 when it would now."""
        if self._state == "closed":
            return 0.0
        if self._state == "open":
            return max(0.0, self._opened_at + self._open_s - now)
        ends = sorted(ends_at for ends_at in self._leases.values() if ends_at > now)
        too_many = len(ends) - self.settings.half_open_calls
        return 0.0 if too_many < 0 else ends[too_many] - now

    def snapshot(self, now: float) -> BreakerSnapshot:
        is_closed = self._state == "closed"
        self._window.expire(now, self.settings.window)
        return BreakerSnapshot(
            state=self._state,
            consecutive_failures=self._run,
            calls=self._window.calls,
            failures=self._window.failures,
            opened_at=None if is_closed else self._opened_at,
            probe_at=None if is_closed else self._opened_at + self._open_s,
            generation=self._generation,
            leases=sum(ends_at > now for ends_at in self._leases.values()),
            transitions=MappingProxyType(dict(self._transitions)),
        )

    def _judge_probe(self, signal: Signal, now: float) -> Transition | None:
        if signal is Signal.UNHEALTHY:
            return self._change("open", now, "a probe failed")
        self._successes += 1
        if self._successes < self.settings.success_threshold:
            return None
        return self._change("closed", now, "probes succeeded")

    def _count(self, signal: Signal, now: float) -> Transition | None:
        is_failure = signal is Signal.UNHEALTHY
        self._window.add(is_failure, now, self.settings.window)
        if not is_failure:
            self._end_run()
            return None
        self._run += 1
        why = self._why_open()
        return None if why is None else self._change("open", now, why)

    def _end_run(self) -> None:
        kept = 1 - _RECENT_SHARE
        self._recent_rate = (1 - (1 - self._recent_rate) * kept**self._run) * kept
        self._run = 0

    def _why_open(self) -> str | None:
        settings, window = self.settings, self._window
        if self._run >= settings.consecutive_failures and self._is_run_evidence():
            return f"{self._run} failures in a row"
        if window.calls >= settings.min_calls and window.failures / window.calls >= settings.failure_rate:
            return f"{window.failures} of {window.calls} calls failed within {settings.window:g} s"
        return None

    def _is_run_evidence(self) -> bool:
        """Whether the run is too long to be chance, as five failures in a row at 40 % of 100 calls/s are.

        The chance of a run somewhere in the window is about calls * rate**run. The rate is what the calls
        outside the run show: in the window (with a weak healthy prior), or lately, should that be worse,
        because the window is slow to notice that a brownout began. It is at most `failure_rate`, the worst
        that is tolerated anyway.
        """
        calls = max(0, self._window.calls - self._run)
        failures = max(0, self._window.failures - self._run)
        if calls < _FEW_CALLS:
            return True
        rate = min(max((failures + 1) / (calls + 10), self._recent_rate), self.settings.failure_rate)
        return self._window.calls * rate**self._run < _CHANCE

    def _change(self, after: BreakerState, now: float, why: str) -> Transition:
        """The only place where the state changes."""
        before, self._state = self._state, after
        self._generation += 1
        self._transitions[after] += 1
        self._leases = {}
        self._successes = 0
        match after:
            case "open":
                self._failed_recoveries += before == "half_open"
                self._opened_at = now
                self._open_s = self._next_open_s()
            case "closed":
                self._failed_recoveries = 0
                self._window = _Window()
                self._run = 0
                self._recent_rate = 0.0
            case "half_open":
                pass
        return Transition(before, after, now, why)

    def _next_open_s(self) -> float:
        """Doubles with each failed recovery; an `open_for` above `max_open_for` stays as it is."""
        settings = self.settings
        doubled_s = settings.open_for * 2.0 ** min(self._failed_recoveries, 64)
        return max(settings.open_for, min(doubled_s, settings.max_open_for))


@dataclass(slots=True)
class _Slot:
    began_at: float
    calls: int = 0
    failures: int = 0


class _Window:
    """Calls and failures of the last `window_s` seconds, in slots of a tenth; the oldest slot leaves
    whole."""

    __slots__ = ("_slots", "calls", "failures")

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self.calls = 0
        self.failures = 0

    def add(self, is_failure: bool, now: float, window_s: float) -> None:
        self.expire(now, window_s)
        if not self._slots or now >= self._slots[-1].began_at + window_s / _SLOTS:
            self._slots.append(_Slot(now))
        slot = self._slots[-1]
        slot.calls += 1
        slot.failures += is_failure
        self.calls += 1
        self.failures += is_failure

    def expire(self, now: float, window_s: float) -> None:
        while self._slots and self._slots[0].began_at + window_s <= now:
            slot = self._slots.popleft()
            self.calls -= slot.calls
            self.failures -= slot.failures
