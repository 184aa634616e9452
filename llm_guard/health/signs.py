"""How an upstream was found when it was looked at.

Owns the nouns. Does not own the looking (`health.prober`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.policy.probing import Finding, ProbeKind, ProbeState

__all__ = ["Finding", "Hear", "ProbeKind", "ProbeState", "ProbeView"]


@dataclass(frozen=True, slots=True)
class ProbeView:
    """What is known of one upstream, or of one deployment of it."""

    upstream: str
    state: ProbeState
    why: str = ""
    """Of the last look, where it did not find all well."""
    failures: int = 0
    """In a row."""
    last_ok_wall: float | None = None
    """Seconds since the epoch; of looks that were `ok`."""
    looked_wall: float | None = None
    took_s: float | None = None
    """The last look that was answered."""
    kind: ProbeKind = "health"
    last: Finding | None = None
    """What the last look found; None: there was none yet. `ok` and `answered` both mean that it is there."""
    deployment: str | None = None
    """Its label, where one deployment is looked at; None: the upstream as a whole."""


Hear = Callable[[ProbeView], None]
"""Hears of each look at an upstream as a whole, at once; must neither block nor raise."""
