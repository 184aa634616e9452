"""The right to send probes to a deployment that several gateways have found to be down: one of them has it at a time.

A store grants it in the background. The call that asks for it waits for an exchange with the store, or is refused.
"""

from __future__ import annotations

from math import inf

# A call asks for about two exchanges, and a right that is not used lapses after three or four.
_ASKED_S = 0.25
_UNUSED_S = 0.4
# It is not used so shortly before it lapses that it could not be extended.
_MARGIN_S = 0.15
# From the probe of one gateway to that of another: a little longer than between those of one (`open_duration`).
_PROBE_INTERVAL_S = 1.5


class ProbeLease:
    """One gateway's view of the right. `now` is monotonic."""

    __slots__ = ("_asked_at", "_granted_at", "_held_until", "_used_at", "is_free")

    def __init__(self) -> None:
        self._asked_at = self._used_at = self._granted_at = self._held_until = -inf
        self.is_free = True
        """True if every gateway may probe: no other one is known, or one of them gets its calls served."""

    def is_held(self, now: float) -> bool:
        """Returns whether this gateway may send a probe."""
        return self.is_free or now < self._held_until - _MARGIN_S

    def try_use(self, now: float) -> bool:
        """Returns whether this gateway may send a probe now, which a call is about to do. If not, it asks for the
        right."""
        if not self.is_held(now):
            self._asked_at = now
            return False
        self._used_at = now
        return True

    def wanted_until(self, now: float) -> float | None:
        """Returns the instant until which this gateway wants the right: one that it has used, or a call has just asked
        for; None: it does not want it."""
        if now < self._held_until and self._used_at >= self._granted_at:
            return max(self._held_until, self._used_at + _PROBE_INTERVAL_S)
        return now + _UNUSED_S if now - self._asked_at <= _ASKED_S else None

    def grant(self, until: float, now: float) -> None:
        """Gives this gateway the right until that instant, or extends it."""
        if now >= self._held_until:
            self._granted_at = now
        self._held_until = until
