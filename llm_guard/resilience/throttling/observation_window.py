"""Results of the calls within a stretch of time, and before a trial.

Counts only; `resilience.throttling.adaptive_throttle` acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass

_REMEMBERED_CALLS = 1000.0
"""Most calls that a share of failures is counted over."""


@dataclass(slots=True)
class Epoch:
    """Results of the calls since an instant."""

    began_at: float
    sent: int = 0
    ok: int = 0
    failures: int = 0
    has_waited: bool = False
    """True if a call had to wait for the rate."""

    @property
    def calls(self) -> int:
        """Calls sent, or calls ended if those are more. Ended calls alone are no measure of the share of failures: if
        successes take longer than failures, most of the first to end have failed."""
        return max(self.sent, self.ok + self.failures)


@dataclass(slots=True)
class FailureShare:
    """The share of calls that fail, counted over all calls since it last changed."""

    failures: float = 0.0
    calls: float = 0.0

    @property
    def share(self) -> float:
        return self.failures / self.calls if self.calls else 0.0

    def add(self, failures: float, calls: float) -> None:
        """Adds calls; old ones lose their weight as others come."""
        self.failures += failures
        self.calls += calls
        if self.calls > _REMEMBERED_CALLS:
            self.failures, self.calls = self.share * _REMEMBERED_CALLS, _REMEMBERED_CALLS


@dataclass(frozen=True, slots=True)
class TrialBaseline:
    """Rate and results of calls before a trial."""

    per_s: float
    share: float
    """Share of failures."""

    @property
    def ok_per_s(self) -> float:
        return self.per_s * (1 - self.share)
