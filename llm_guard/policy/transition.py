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
