"""What became of the calls of a stretch of time, and how calls fared before a trial.

Owns the counts. Does not own what follows from them (`policy.throttle`).
"""

from __future__ import annotations

from dataclasses import dataclass

_REMEMBERED_CALLS = 1000.0
"""Calls that a share of failures is counted over, at most."""


@dataclass(slots=True)
class Epoch:
    """What became of the calls since an instant."""

    began_at: float
    sent: int = 0
    ok: int = 0
    failures: int = 0
    has_waited: bool = False
    """A call had to wait for the rate."""

    @property
    def calls(self) -> int:
        """Calls sent, or ended where those are more. The calls that have ended are no measure of the share of failures:
        where answers take longer than failures, most of the first that end have failed."""
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
        """Counts calls; those of long ago lose their weight as others come."""
        self.failures += failures
        self.calls += calls
        if self.calls > _REMEMBERED_CALLS:
            self.failures, self.calls = self.share * _REMEMBERED_CALLS, _REMEMBERED_CALLS


@dataclass(frozen=True, slots=True)
class Before:
    """How calls fared before a trial."""

    per_s: float
    share: float
    """Of failures."""

    @property
    def ok_per_s(self) -> float:
        return self.per_s * (1 - self.share)
