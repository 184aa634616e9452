"""The states of a breaker, and what is kept of how it went from one to the other.

Owns the names of the states and the memory of changes. Does not own when a state changes (`policy.breaker`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

BreakerState = Literal["closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only", "disabled"]
BreakerMode = Literal["auto", "forced_open", "forced_closed", "metrics_only", "disabled"]

KEPT = 16


@dataclass(frozen=True, slots=True)
class Transition:
    before: BreakerState
    after: BreakerState
    at: float
    why: str
    """A phrase for the log line."""


class History:
    """How often each state was entered, and the last sixteen transitions."""

    __slots__ = ("_entered", "_latest", "changes")

    def __init__(self) -> None:
        self._entered: dict[BreakerState, int] = dict.fromkeys(get_args(BreakerState), 0)
        self._latest: deque[Transition] = deque(maxlen=KEPT)
        self.changes = 0
        """Transitions since the start: who has seen so many has seen the latest."""

    def note_entry(self, state: BreakerState) -> None:
        """Also where a config that was read anew says so, which is no transition."""
        self._entered[state] += 1

    def note(self, transition: Transition) -> None:
        self._latest.append(transition)
        self.changes += 1

    def entered(self) -> Mapping[BreakerState, int]:
        return MappingProxyType(dict(self._entered))

    def latest(self) -> tuple[Transition, ...]:
        """The newest last."""
        return tuple(self._latest)


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    state: BreakerState
    is_forced: bool
    """The state is an operator's word."""
    consecutive_failures: int
    calls: int
    failures: int
    slow_calls: int
    """All three within the window."""
    failure_share: float
    """Of the window's calls, 0 to 1; 0 when there are none."""
    outage_at: float | None
    """When it opened first since it was last closed; None while it is not open or half-open."""
    opened_at: float | None
    """When it opened last; None likewise."""
    why: str | None
    """What opened or forced it, e.g. `5 failures in a row`; None while it is closed, or as the config sets it."""
    probe_at: float | None
    """From when on the next call is let through, a light probe apart; None likewise."""
    generation: int
    leases: int
    transitions: Mapping[BreakerState, int]
    """How often each state was entered since the start."""
    latest: tuple[Transition, ...]
    """The last sixteen, the newest last."""
