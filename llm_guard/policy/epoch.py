"""What became of the calls of a stretch of time, and how calls fared before a trial.

Owns the counts. Does not own what follows from them (`policy.throttle`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Epoch:
    """What became of the calls since an instant."""

    began_at: float
    sent: int = 0
    ok: int = 0
    failures: int = 0
    has_waited: bool = False
    """A call had to wait for the rate."""


@dataclass(frozen=True, slots=True)
class Before:
    """How calls fared before a trial."""

    per_s: float
    share: float
    """Of failures."""

    @property
    def ok_per_s(self) -> float:
        return self.per_s * (1 - self.share)
