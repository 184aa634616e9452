"""How long a breaker refuses calls before it lets the next probe through.

Computes the lengths of an outage's open periods and of its probes' leases. `resilience.circuit_breaker.breaker` decides
when an open period begins and what ends the outage.
"""

from __future__ import annotations

from math import inf, sqrt

# With early probes an open period lasts this long plus a share of the outage so far, up to a longest one. A recovery
# after D seconds is noticed within 0.8 s + D / 40, and within 1.25 s however long the outage was: what a recovery goes
# unnoticed is lost for every client. An outage of 8 s costs 9 probes, one of 10 minutes 480; more than 1.5 a second
# would be a load.
_EARLY_S = 0.8
_EARLY_SHARE = 1 / 40
# Where many calls are refused, one of 250 of them becomes a probe, and a recovery is noticed within 0.2 s + D / 40:
# clients that wait for the end of an outage are served later by the time that it goes unnoticed. 1,000 of them, served
# at 200/s after an outage of 4 s, must not take longer than 1.1 times the 9 s that they need.
_CALLS_PER_PROBE = 250
_BUSY_S = 0.2
# The first open period is for blips. In a brownout any probe may succeed.
_FIRST_S = 0.25
_LONGEST_EARLY_S = 1.25
# A lease lasts a twentieth of the outage so far longer than this. A shorter one would send a second probe to a provider
# that answers in a second.
_LEASE_S = 0.8
_LEASE_SHARE = 1 / 20
_SHORTEST_LEASE_S = 1.0
_LONGEST_LEASE_S = 2.125
# Without early probes an open period is this share of the outage so far.
_SHARE_OF_OUTAGE = 1 / 8
# Multiples of it, modulo 1, spread more evenly than random draws (Knuth, vol. 3, 6.4).
_GOLDEN = (sqrt(5) - 1) / 2


class OpenDuration:
    """The open periods of one breaker, on monotonic time. An outage is a sequence of them; `end` ends it.

    Each open period is followed by a probe; a probe that fails begins the next one.
    """

    __slots__ = ("_count", "_phase", "began_at", "is_brownout", "length_s", "outage_at", "refused")

    def __init__(self, phase: float) -> None:
        """`phase`, 0 <= phase < 1: where the jitter's sequence begins."""
        self.outage_at: float | None = None
        """When the first open period of the present outage began; None outside one."""
        self.is_brownout = False
        """True if a share of the calls opened it, not a run of failures: some calls still succeed."""
        self.began_at = 0.0
        self.length_s = 0.0
        self.refused = 0
        """Calls refused since the outage began, or the breaker was forced open; the breaker counts them."""
        self._phase = phase
        self._count = 0

    def begin(
        self, now: float, open_s: float, max_open_s: float, jitter: float, *,
        has_early_probes: bool, is_brownout: bool, probe_took_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Begins an open period. Its length grows with the outage and is cut by up to the share `jitter` of itself.

        With early probes: 800 ms (the first, and all in a brownout: 250 ms) plus a fortieth of the outage so far; or
        the time in which 250 calls come, if that is shorter, but not below 200 ms plus a fortieth of the outage; at
        most 1.25 s and at most `open_s`. These are intervals from one probe to the next: `probe_took_s`, the seconds
        until the last one failed, is subtracted, so probes that hang do not delay the recovery. Without early probes:
        `open_s`, or an eighth of the outage so far if that is longer, at most `max_open_s` (a longer `open_s` wins).
        `is_brownout` is read when the outage begins.
        """
        at_least_s = _EARLY_S
        if self.outage_at is None:
            self.outage_at = now
            self.is_brownout = is_brownout
            at_least_s = _FIRST_S
        if has_early_probes:
            early_s = self._early_s(_FIRST_S if self.is_brownout else at_least_s, now)
            length_s = min(early_s, self._busy_s(now), open_s)
        else:
            length_s = max(open_s, min((now - self.outage_at) * _SHARE_OF_OUTAGE, max_open_s))
        draw = (self._phase + self._count * _GOLDEN) % 1.0
        self.began_at = now
        passed_s = probe_took_s if has_early_probes else 0.0
        self.length_s = max(0.0, length_s * (1 - jitter * draw) - passed_s)
        self._count += 1

    def end(self) -> None:
        """Ends the outage."""
        self.outage_at = None
        self.is_brownout = False
        self.refused = 0

    def probe_at(self) -> float:
        """Returns the instant from which a probe may pass."""
        return self.began_at + self.length_s

    def lease_s(self, now: float) -> float:
        """Returns how long a probe sent now keeps the next one back if it does not return: 1 s to 2.1 s, growing with
        the outage. Independent of the settings: a call that hangs must not delay the recovery."""
        lease_s = max(_SHORTEST_LEASE_S, _LEASE_S + self._outage_s(now) * _LEASE_SHARE)
        return min(lease_s, _LONGEST_LEASE_S)

    def _early_s(self, at_least_s: float, now: float) -> float:
        return min(at_least_s + self._outage_s(now) * _EARLY_SHARE, _LONGEST_EARLY_S)

    def _outage_s(self, now: float) -> float:
        return 0.0 if self.outage_at is None else now - self.outage_at

    def _busy_s(self, now: float) -> float:
        """Returns the interval of probes that follows from the number of refused calls; inf if none was refused."""
        if self.outage_at is None or not self.refused:
            return inf
        return max(self._early_s(_BUSY_S, now), _CALLS_PER_PROBE * (now - self.outage_at) / self.refused)
