"""The states of a breaker, and the history of its changes between them.

`resilience.circuit_breaker.breaker` decides when a state changes.
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
    refused: int = 0
    """Calls refused until then, since it last left closed or was forced open."""


class BreakerHistory:
    """Counts how often each state was entered, and keeps the last sixteen transitions."""

    __slots__ = ("_entered", "_latest", "changes")

    def __init__(self) -> None:
        self._entered: dict[BreakerState, int] = dict.fromkeys(get_args(BreakerState), 0)
        self._latest: deque[Transition] = deque(maxlen=KEPT)
        self.changes = 0
        """Transitions since the start: a reader compares it with the last number seen to know of new ones."""

    def note_entry(self, state: BreakerState) -> None:
        """Counts an entry, also one by a reloaded config, which is not a transition."""
        self._entered[state] += 1

    def note(self, transition: Transition) -> None:
        self._latest.append(transition)
        self.changes += 1

    def entered(self) -> Mapping[BreakerState, int]:
        return MappingProxyType(dict(self._entered))

    def latest(self) -> tuple[Transition, ...]:
        """Returns the last transitions, the newest last."""
        return tuple(self._latest)


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    state: BreakerState
    is_forced: bool
    """The state was set by an operator."""
    consecutive_failures: int
    calls: int
    failures: int
    slow_calls: int
    """All three within the window."""
    failure_share: float
    """Share of failures among the window's calls, 0 to 1; 0 if there are none."""
    outage_at: float | None
    """When it first opened since it was last closed; None unless it is open or half-open."""
    opened_at: float | None
    """When it last opened; None likewise."""
    why: str | None
    """Reason for the state, e.g. `5 failures in a row`; None while it is closed, or in the config's state."""
    probe_at: float | None
    """When the next call is let through as a probe, unless a light probe succeeds earlier; None likewise."""
    generation: int
    leases: int
    transitions: Mapping[BreakerState, int]
    """How often each state was entered since the start."""
    latest: tuple[Transition, ...]
    """The last sixteen transitions, the newest last."""
