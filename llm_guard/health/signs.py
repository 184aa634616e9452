"""The result of probing an upstream, as other modules see it. The probing itself is in `health.prober`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.policy.probing import Finding, ProbeKind, ProbeState

__all__ = ["Finding", "Hear", "ProbeKind", "ProbeState", "ProbeView"]


@dataclass(frozen=True, slots=True)
class ProbeView:
    """Probe state of one upstream or one deployment."""

    upstream: str
    state: ProbeState
    why: str = ""
    """Problem that the last probe found; empty: none."""
    failures: int = 0
    """Failed probes in a row."""
    last_ok_wall: float | None = None
    """Time of the last `ok` probe, in seconds since the epoch."""
    looked_wall: float | None = None
    took_s: float | None = None
    """Duration in seconds of the last probe that was answered."""
    kind: ProbeKind = "health"
    last: Finding | None = None
    """Result of the last probe; None: none yet. Both `ok` and `answered` mean that the upstream is reachable."""
    deployment: str | None = None
    """Label of the probed deployment; None: the upstream as a whole."""


Hear = Callable[[ProbeView], None]
"""Called synchronously after each probe of an upstream as a whole; must neither block nor raise."""
