"""The candidates of a call: which deployments it may still try, in which order, and from when.

Holds the remaining deployments of one call. `policy.next_step` decides when to move on from one, `gateway.entrance`
which ones are in cooldown, failing or full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.policy.next_step import FallBack, Retry

WaitedFor = Literal["", "backoff", "retry-after", "queue"]
"""Cause of a wait: nothing, our own backoff, the upstream's hint, or other calls before this one."""


@dataclass(slots=True, eq=False)
class Stop:
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
    is_paid: bool = False
    """True if the next retry has taken its tokens."""


class Itinerary:
    """The candidates of one call: those not tried yet in the route's order, then those that may be tried again."""

    __slots__ = ("_current", "_stops")

    def __init__(self, stops: list[Stop]) -> None:
        self._stops = stops
        self._current: Stop | None = None

    def next(self) -> tuple[Stop, ...]:
        """Returns the candidates that may be tried now or later, the preferred one first; empty: the call is over. One
        that is to be retried before all others is returned alone."""
        return (self._current,) if self._current is not None else tuple(self._stops)

    def all(self) -> tuple[Stop, ...]:
        """Returns all candidates that have not been dropped."""
        return tuple(self._stops)

    def others(self, stop: Stop) -> tuple[Stop, ...]:
        """Returns all candidates except this one."""
        return tuple([each for each in self._stops if each is not stop])

    def first_other(self, stop: Stop) -> Stop | None:
        """Returns the candidate that would be tried after this one."""
        for each in self._stops:
            if each is not stop:
                return each
        return None

    def peers(self, stop: Stop) -> tuple[Stop, ...]:
        """Returns the other candidates of the same model."""
        return tuple([other for other in self._stops if other is not stop and other.alias == stop.alias])

    def has_others(self) -> bool:
        """Returns whether more than one candidate has not been dropped."""
        return len(self._stops) > 1

    def retry(self, stop: Stop, step: Retry, now: float) -> None:
        """Retries this candidate before all others."""
        self._await(stop, step.after_s, step.is_hint, now)
        stop.is_paid = True
        self._current = stop

    def ask_again(self, stop: Stop) -> None:
        """Tries this candidate again at once, before all others. Not a retry: another key is used."""
        stop.not_before = -inf
        self._current = stop

    def fall_back(self, stop: Stop, step: FallBack, now: float) -> None:
        """Tries the others first, and this one again after them, or after those of its own model, if at all."""
        self._current = None
        self._stops.remove(stop)
        if step.to_other_model:
            self._stops = [other for other in self._stops if other.alias != stop.alias]
        if step.back_after_s is not None:
            self._await(stop, step.back_after_s, step.is_hint, now)
            self._stops.insert(len(self._stops) if step.is_last else self._end_of_peers(stop), stop)

    def drop(self, stop: Stop) -> None:
        """Asks it no more."""
        self._current = None
        self._stops.remove(stop)

    def release(self) -> bool:
        """Ends the precedence of a candidate that is to be retried first; False: there was none, or there are no
        others."""
        did_stand = self._current is not None and len(self._stops) > 1
        self._current = None
        return did_stand

    def _end_of_peers(self, stop: Stop) -> int:
        """Returns the index after the leading candidates of the same model."""
        stops = self._stops
        return next((place for place, other in enumerate(stops) if other.alias != stop.alias), len(stops))

    @staticmethod
    def _await(stop: Stop, wait_s: float, is_hint: bool, now: float) -> None:
        stop.retries += 1
        stop.previous_s = wait_s
        stop.not_before = now + wait_s
        stop.waited_for = "retry-after" if is_hint else "backoff"
        stop.is_paid = False
