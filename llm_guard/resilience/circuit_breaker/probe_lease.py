"""The lease to send probes to a deployment that several gateways have found to be down. One gateway holds it at a time.

A store grants it in the background. The call that requests it waits for an exchange with the store, or is refused.
"""

from __future__ import annotations

from math import inf

# A request is valid for about two exchanges, and a lease that is not used expires after three or four.
_REQUEST_S = 0.25
_UNUSED_S = 0.4
# It is not used so shortly before its end that it could not be extended.
_MARGIN_S = 0.15
# From the probe of one gateway to that of another: a little longer than between those of one (`open_duration`).
_PROBE_INTERVAL_S = 1.5
# A gateway that cannot reach the provider must release the lease: otherwise the other gateways could not probe.
_AFTER_TENURE_S = 0.3
# After this long without an exchange every gateway may probe: a failure of the exchanges must not end the probes.
_RESTRICTED_S = 2.0


class ProbeLease:
    """One gateway's view of the lease. `now` is monotonic."""

    __slots__ = ("_granted_at", "_held_until", "_requested_at", "_restricted_until", "_taken_until", "_used_at")

    def __init__(self) -> None:
        self._requested_at = self._used_at = self._granted_at = self._held_until = -inf
        self._restricted_until = -inf
        self._taken_until = -inf
        """Until when another gateway holds the lease."""

    def is_free(self, now: float) -> bool:
        """Returns whether every gateway may probe: no other one is known, one of them gets its calls served, or the
        exchanges have ended."""
        return now >= self._restricted_until

    def restrict(self, now: float) -> None:
        """Notes that all gateways have found the deployment to be down."""
        self._restricted_until = now + _RESTRICTED_S

    def free(self) -> None:
        self._restricted_until = -inf

    def is_held(self, now: float) -> bool:
        """Returns whether this gateway may send a probe."""
        return self.is_free(now) or now < self._held_until - _MARGIN_S

    def taken_s(self, now: float) -> float:
        """Returns for how many seconds another gateway holds the lease, as far as is known."""
        return max(0.0, self._taken_until - now)

    def try_use(self, now: float) -> bool:
        """Returns whether this gateway may send a probe now, for a call that would be one. If not, requests the
        lease."""
        if not self.is_held(now):
            self._requested_at = now
            return False
        if self._used_at < self._granted_at:
            self._used_at = now
        return True

    def wanted_until(self, now: float) -> float | None:
        """Returns the instant until which this gateway wants the lease: until another gateway may probe, if it has used
        the lease, or for a moment, if a call has just requested it; None: it does not want it."""
        if now < self._held_until and self._used_at >= self._granted_at:
            return max(self._held_until, self._used_at + _PROBE_INTERVAL_S)
        is_requested = now - self._requested_at <= _REQUEST_S and now >= self._held_until + _AFTER_TENURE_S
        return now + _UNUSED_S if is_requested else None

    def grant(self, until: float, now: float) -> None:
        """Grants the lease to this gateway until that instant, or extends it."""
        if now >= self._held_until:
            self._granted_at = now
        self._held_until = until
        self._taken_until = -inf

    def note_taken(self, until: float) -> None:
        """Notes that another gateway holds the lease until that instant."""
        self._taken_until = until
