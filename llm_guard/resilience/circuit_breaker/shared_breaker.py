"""A breaker of several gateways that share their evidence about one deployment.

Each gateway keeps a breaker of its own, which decides about calls at once and alone. In the background it publishes a
summary (`resilience.circuit_breaker.shared_evidence`), and draws its conclusions from those of all gateways.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import AFTER_OUTAGE, Breaker, BreakerSettings, Permit
from llm_guard.resilience.circuit_breaker.caller_evidence import NO_CALLERS, CallersSummary
from llm_guard.resilience.circuit_breaker.history import BreakerMode, Transition
from llm_guard.resilience.circuit_breaker.opening_rules import reason_of_brownout, reason_of_outage
from llm_guard.resilience.circuit_breaker.probe_lease import ProbeLease
from llm_guard.resilience.circuit_breaker.shared_evidence import (
    MOST_AGES,
    NO_FAILURES,
    BreakerSummary,
    PooledRun,
    PooledWindow,
    SharedRate,
    ok_takes_s,
    without_lone_callers,
)

_HEALTHY = Signal.HEALTHY
EXCHANGE_S = 0.1
"""Gateways exchange their summaries this often while any of them has failures; less often while all are well."""

_RECOVERED_S = 60.0
"""For so long after its probes have closed it a breaker is published, even without calls."""

# With failures at one gateway only, the trouble may be its own.
_LEAST_GATEWAYS = 2


class SharedBreaker(Breaker):
    """A breaker that also opens on the evidence of all gateways together, and sends probes only with the lease."""

    __slots__ = (
        "_in_flight", "_ok_sent_at", "_ok_sent_before", "_parts_before", "_rate", "_recovered_at",
        "_recovery_noted_at", "lease",
    )  # fmt: skip

    def __init__(self, settings: BreakerSettings, phase: float = 0.0) -> None:
        super().__init__(settings, phase)
        self.lease = ProbeLease()
        self._rate = SharedRate()
        self._parts_before = self._rate.parts
        self._in_flight: dict[Permit, None] = {}
        self._ok_sent_at = self._ok_sent_before = -inf
        """When the call was sent that is the last to have succeeded, and the one before it."""
        self._recovered_at = -inf
        """When probes last closed it."""
        self._recovery_noted_at = -inf
        """When it was last half-opened because another gateway's breaker has closed."""

    def try_acquire(self, now: float) -> Permit | None:
        if self.state == "closed":  # as Breaker.try_acquire, a call of which takes as long as the rest of this
            self._sent += 1
            permit = Permit(self._generation, False, now, self._sent)
            self._in_flight[permit] = None
            return permit
        if self._is_due(now) and not self.lease.try_use(now):
            self._opening.refused += self.lease.taken_s(now) > 0  # else the call waits, and may not be refused at all
            return None
        other = super().try_acquire(now)
        if other is not None:
            self._in_flight[other] = None
        return other

    def has_lease(self, now: float) -> bool:
        return self.lease.is_held(now)

    def awaits_lease(self, now: float) -> bool:
        return self._lacks_lease(now) and not self.lease.taken_s(now)

    def retry_after_s(self, now: float) -> float:
        lacks_lease = self._lacks_lease(now)
        return max(EXCHANGE_S, self.lease.taken_s(now)) if lacks_lease else super().retry_after_s(now)

    def come_back_s(self, now: float) -> float:
        return self.retry_after_s(now) if self._lacks_lease(now) else super().come_back_s(now)

    def force(self, mode: BreakerMode, now: float) -> Transition | None:
        return self._begun_anew(super().force(mode, now), now)

    def reset(self, now: float, why: str) -> Transition | None:
        return self._begun_anew(super().reset(now, why), now)

    def settle(self, permit: Permit, signal: Signal, now: float, duration_s: float | None = None) -> Transition | None:
        self._in_flight.pop(permit, None)
        if signal is _HEALTHY and not permit.is_settled:
            is_latest = permit.sent_at > self._ok_sent_at
            if is_latest:
                self._ok_sent_before, self._ok_sent_at = self._ok_sent_at, permit.sent_at
            if self._run.length or self._rate.parts is not NO_FAILURES:
                self._note_success(is_latest=is_latest)
        return Breaker.settle(self, permit, signal, now, duration_s)  # `super()` takes as long as a line of this

    def revise_to_failure(self, permit: Permit, now: float) -> Transition | None:
        if permit.sent_at == self._ok_sent_at:
            self._ok_sent_at = self._ok_sent_before
            if self._rate.parts is not NO_FAILURES:
                self._rate.parts = self._parts_before  # negligible if that success came without failures before it
        return super().revise_to_failure(permit, now)

    def is_idle(self, now: float) -> bool:
        """Returns whether there is nothing to publish: closed, without calls in its window, and not just recovered."""
        if self.state != "closed" or now - self._recovered_at < _RECOVERED_S:
            return False
        if self._window.calls:
            self._window.expire(now, self._settings.window)
        return not self._window.calls

    def is_well(self, now: float) -> bool:
        """Returns whether there is nothing that other gateways should know at once: closed, without failures and slow
        calls in the window; or an operator has set the state."""
        if self.state != "closed":
            return self.state not in ("open", "half_open")
        window = self._window
        if not (window.failures or window.slow_calls or self._run.counted):
            return True
        return self.is_idle(now) or not (window.failures or window.slow_calls or self._run.counted)

    def note_calls_elsewhere(self, calls: int) -> None:
        """Notes how many calls the other gateways have in their windows."""
        if own := self._window.calls:
            self._rate.calls_per_own = 1 + calls / own

    def summary(self, now: float, callers: CallersSummary = NO_CALLERS) -> BreakerSummary | None:
        """Returns the evidence to publish, with that about callers; None if an operator has set the state."""
        if self.state not in ("closed", "open", "half_open"):
            return None
        run, window = self._run, self._window
        window.expire(now, self._settings.window)
        return BreakerSummary(
            state=self.state,
            calls=window.calls,
            failures=window.failures,
            slow_calls=window.slow_calls,
            window_s=window.length_s(now),
            counted=run.counted,
            first_sent_s=now - run.first_sent_at if run.counted else 0.0,
            latest_sent_s=tuple(now - sent_at for sent_at in run.latest_sent(MOST_AGES)),
            takes_s=run.takes_s,
            slowest_s=run.slowest_s,
            ok_sent_s=None if self._ok_sent_at == -inf else now - self._ok_sent_at,
            ok_takes_s=self._ok_takes_s,
            rates=self._rate.parts,
            in_flight_s=tuple(now - permit.sent_at for permit in self._sample_in_flight()),
            recovered_s=None if self._recovered_at == -inf else now - self._recovered_at,
            callers=callers,
        )

    def conclude_with(
        self, others: Sequence[BreakerSummary], now: float, callers: CallersSummary = NO_CALLERS
    ) -> Transition | None:
        """Opens it if all gateways together have enough evidence of an outage, and half-opens it if another one's has
        closed since. `others`: their latest summaries; `callers`: this gateway's evidence about callers. Does nothing
        in a state that an operator has set."""
        if not others or any(each.state == "closed" for each in others):
            self.lease.free()
        else:
            self.lease.restrict(now)
        if self.state == "open":
            return self._note_recovery_elsewhere(others, now)
        own = self.summary(now, callers)
        if self.state != "closed" or own is None or not others:
            return None
        summaries = without_lone_callers([own, *others])
        run, window = PooledRun(summaries, now), PooledWindow(summaries)
        if run.gateways < _LEAST_GATEWAYS:
            return None
        if (why := reason_of_outage(self._settings, run, window, now, ok_takes_s(summaries))) is not None:
            self._outage_from = inf if self._settings.sensitivity == "literal" else run.first_sent_at
            self.lease.restrict(now)  # the others conclude the same
            return self._change("open", now, f"{why} at {run.gateways} gateways")
        why = reason_of_brownout(self._settings, window)
        return None if why is None else self._change("open", now, f"{why}, at all gateways", is_brownout=True)

    def _note_success(self, *, is_latest: bool) -> None:
        if is_latest:
            self._parts_before = self._rate.parts
        self._rate.note_success(self._run.length)

    def _is_due(self, now: float) -> bool:
        """Returns whether the next call is a probe."""
        return self.state in ("open", "half_open") and super().retry_after_s(now) <= 0

    def _lacks_lease(self, now: float) -> bool:
        """Returns whether the next call would be a probe if this gateway had the lease."""
        return self._is_due(now) and not self.lease.is_held(now)

    def _begun_anew(self, transition: Transition | None, now: float) -> Transition | None:
        """Ends the run of failures if an operator has closed the breaker: otherwise the failures of other gateways
        would open it again at once."""
        if transition is not None and transition.after == "closed":
            self._ok_sent_at = now
        return transition

    def _sample_in_flight(self) -> list[Permit]:
        step = -(-len(self._in_flight) // MOST_AGES) or 1
        return list(self._in_flight)[::step]

    def _note_recovery_elsewhere(self, others: Sequence[BreakerSummary], now: float) -> Transition | None:
        recovered_s = min((each.recovered_s for each in others if each.recovered_s is not None), default=inf)
        outage_at = self._opening.outage_at
        if outage_at is None or now - recovered_s <= max(outage_at, self._recovery_noted_at):
            return None
        self._recovery_noted_at = now
        return self.end_opening(now, "another gateway's probes have succeeded")

    def _judge_probe(self, permit: Permit, signal: Signal, is_slow: bool, now: float) -> Transition | None:
        transition = super()._judge_probe(permit, signal, is_slow, now)
        if transition is not None and transition.after == "closed":
            self._recovered_at = now
            self._rate = SharedRate(AFTER_OUTAGE, self._rate.calls_per_own)
        return transition
