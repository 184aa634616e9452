"""The callers of a deployment at one gateway of several: what it publishes of them, and how the others' evidence
decides about extra probes.

`resilience.circuit_breaker.caller_evidence` decides which callers fail alone by the evidence of all gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from llm_guard.resilience.circuit_breaker.caller_evidence import CallerEvidence, CallersSummary
from llm_guard.resilience.circuit_breaker.callers import MOST_LOOKS, Callers

_MOST_PUBLISHED = 8
"""Failing callers in a summary: those with the most failures since the last success."""


class SharedCallers(Callers):
    """The callers of one deployment."""

    __slots__ = ("_in_run", "_looks_elsewhere", "_ok_caller", "digest")

    def __init__(self, digest: Callable[[str], str] = str) -> None:
        """`digest` returns the name of a caller in a summary."""
        super().__init__()
        self.digest = digest
        self._ok_caller = ""
        """Caller of the youngest call that has succeeded."""
        self._in_run: dict[str, int] = {}
        """Failures of each caller since the last success of any that is not judged separately."""
        self._looks_elsewhere: dict[str, float] = {}
        """Callers, by digest, that have failed or sent an extra probe at other gateways, with the instant from which
        each may send the next one."""

    def note_ok(self, caller: str, began_at: float, now: float, own_key: str = "") -> None:
        if began_at > self._ok_began_at:
            self._ok_caller = caller
        if self._in_run and self.suspect(caller) is None:
            self._in_run.clear()
        if self._looks_elsewhere and not self.has_failures:
            self._together.note(False, now)  # to be compared with failures at other gateways
        Callers.note_ok(self, caller, began_at, now, own_key)

    def note_failure(self, caller: str, now: float) -> bool:
        self._in_run[caller] = self._in_run.get(caller, 0) + 1
        return Callers.note_failure(self, caller, now)

    def try_probe(self, caller: str, now: float, has_lease: bool = True) -> bool:
        """If a few callers have failed at all gateways, each other one probes, at any of them; if many have, callers
        probe at the gateway with the lease."""
        elsewhere = self._looks_elsewhere
        if now < elsewhere.get(self.digest(caller), -inf):
            return False
        known = elsewhere.keys() | {self.digest(name) for name in self._next_looks}
        if 0 < len(known) < MOST_LOOKS:
            return self._try_look(caller, now)
        return Callers.try_probe(self, caller, now, has_lease)

    def summary(self, now: float) -> CallersSummary:
        """Returns the evidence to publish."""
        ok_caller, ok_began_s = self.digest(self._ok_caller), now - self._ok_began_at
        if not (self.has_failures or self._next_looks or self._looks_elsewhere):
            return CallersSummary(ok_caller=ok_caller, ok_began_s=None if ok_began_s == inf else ok_began_s)
        self._together.fade(now)
        return CallersSummary(
            tuple(self._evidence(now)),
            self._together.calls,
            self._together.failures,
            ok_caller,
            None if ok_began_s == inf else ok_began_s,
            {self.digest(caller): at - now for caller, at in self._next_looks.items()},
        )

    def note_elsewhere(self, parts: Iterable[CallersSummary], now: float) -> None:
        """Notes which callers of other gateways have failed or sent extra probes lately."""
        found: dict[str, float] = {}
        for part in parts:
            for caller, seconds in part.looks.items():
                found[caller] = max(now + seconds, found.get(caller, -inf))
        self._looks_elsewhere = found

    def reset(self) -> None:
        Callers.reset(self)
        self._in_run.clear()

    def _evidence(self, now: float) -> Iterable[CallerEvidence]:
        failing = [(in_run, caller) for caller, in_run in self._in_run.items() if self.suspect(caller) is None]
        for in_run, caller in sorted(failing, reverse=True)[:_MOST_PUBLISHED]:
            record = self._records.get(caller)
            if record is not None:
                record.tally.fade(now)
                run_began_s = now - record.run_began_at if record.run else None
                yield CallerEvidence(
                    self.digest(caller), record.tally.calls, record.tally.failures, run_began_s, in_run
                )
