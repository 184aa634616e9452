"""The candidates of a call: which deployments it may still try, in which order, and from when.

Holds the remaining deployments of one call. `resilience.retry.decision` decides when to move on from one,
`proxy.attempts.admission` which ones are in cooldown, failing or full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.resilience.retry.decision import FallBack, Retry

WaitedFor = Literal["", "backoff", "retry-after", "queue", "probe"]
"""Cause of a wait: nothing, our own backoff, the upstream's hint, other calls before this one, or a missing lease to
send a probe."""


@dataclass(slots=True, eq=False)
class Candidate:
    """One deployment that a call may try."""

    place: int
    """Index of its target in the route."""
    alias: str
    retries: int = 0
    """Retries made or decided on."""
    previous_s: float | None = None
    """The wait before the last retry."""
    not_before: float = -inf
    waited_for: WaitedFor = ""
    probe_waits: int = 0
    """Waits for the lease to send a probe."""
    is_paid: bool = False
    """True if the next retry has taken its tokens."""


class Candidates:
    """The candidates of one call: those not tried yet in the route's order, then those that may be tried again."""

    __slots__ = ("_current", "_stops")

    def __init__(self, stops: list[Candidate]) -> None:
        self._stops = stops
        self._current: Candidate | None = None

    def next(self) -> tuple[Candidate, ...]:
        """Returns the candidates that may be tried now or later, the preferred one first; empty: the call is over. One
        that is to be retried before all others is returned alone."""
        return (self._current,) if self._current is not None else tuple(self._stops)

    def all(self) -> tuple[Candidate, ...]:
        """Returns all candidates that have not been dropped."""
        return tuple(self._stops)

    def others(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """Returns all candidates except this one."""
        return tuple([stop for stop in self._stops if stop is not candidate])

    def first_other(self, candidate: Candidate) -> Candidate | None:
        """Returns the candidate that would be tried after this one."""
        for stop in self._stops:
            if stop is not candidate:
                return stop
        return None

    def peers(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """Returns the other candidates of the same model."""
        return tuple([other for other in self._stops if other is not candidate and other.alias == candidate.alias])

    def has_others(self) -> bool:
        """Returns whether more than one candidate has not been dropped."""
        return len(self._stops) > 1

    def retry(self, candidate: Candidate, step: Retry, now: float) -> None:
        """Retries this candidate before all others."""
        self._await(candidate, step.after_s, step.is_hint, now)
        candidate.is_paid = True
        self._current = candidate

    def ask_again(self, candidate: Candidate) -> None:
        """Tries this candidate again at once, before all others. Not a retry: another key is used."""
        candidate.not_before = -inf
        self._current = candidate

    def fall_back(self, candidate: Candidate, step: FallBack, now: float) -> None:
        """Tries the others first, and this one again after them, or after those of its own model, if at all."""
        self._current = None
        self._stops.remove(candidate)
        if step.to_other_model:
            self._stops = [other for other in self._stops if other.alias != candidate.alias]
        if step.back_after_s is not None:
            self._await(candidate, step.back_after_s, step.is_hint, now)
            self._stops.insert(len(self._stops) if step.is_last else self._end_of_peers(candidate), candidate)

    def drop(self, candidate: Candidate) -> None:
        """Asks it no more."""
        self._current = None
        self._stops.remove(candidate)

    def release(self) -> bool:
        """Ends the precedence of a candidate that is to be retried first; False: there was none, or there are no
        others."""
        did_stand = self._current is not None and len(self._stops) > 1
        self._current = None
        return did_stand

    def _end_of_peers(self, candidate: Candidate) -> int:
        """Returns the index after the leading candidates of the same model."""
        stops = self._stops
        return next((place for place, other in enumerate(stops) if other.alias != candidate.alias), len(stops))

    @staticmethod
    def _await(candidate: Candidate, wait_s: float, is_hint: bool, now: float) -> None:
        candidate.retries += 1
        candidate.previous_s = wait_s
        candidate.not_before = now + wait_s
        candidate.waited_for = "retry-after" if is_hint else "backoff"
        candidate.is_paid = False
