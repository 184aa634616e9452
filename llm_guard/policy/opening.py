"""How long a breaker stays open, and when it looks again.

Owns the lengths of an outage's openings. Does not own when one begins or what ends it (`policy.breaker`).
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

Looks = Literal["never", "seldom", "often"]
"""When to look early whether an outage is over: after 250 ms, 1 s, 4 s and so on; or every 250 ms, where it answers
some of its calls even now."""

# An opening is this share of the outage so far: a recovery is then noticed within an eighth of what it ended.
_SHARE_OF_OUTAGE = 1 / 8
# When to look whether an outage was no more than a blip: so soon after it began, then each time so much later.
_EARLY_S = 0.25
_LATER_TIMES = 4.0
# Multiples of it, modulo 1, spread more evenly than chance would from the first few on (Knuth, vol. 3, 6.4).
_GOLDEN = (sqrt(5) - 1) / 2


class Opening:
    """The openings of one breaker, on monotonic time; one outage is one opening after the other, until `end`.

    Early probes are due in the first of an outage alone. One that fails changes nothing about its end.
    """

    __slots__ = ("_count", "_early_s", "_looks", "_phase", "began_at", "length_s", "outage_at")

    def __init__(self, phase: float) -> None:
        """`phase`, 0 <= phase < 1: where the jitter's sequence begins."""
        self.outage_at: float | None = None
        """When the first opening of the present outage began; None outside one."""
        self.began_at = 0.0
        self.length_s = 0.0
        self._looks: Looks = "never"
        self._early_s: float | None = None
        """How long after the outage began the next early probe is due; None: only the opening's end counts."""
        self._phase = phase
        self._count = 0

    def begin(self, now: float, open_s: float, max_open_s: float, jitter: float, looks: Looks) -> None:
        """Opens, or goes on with the opening in which an early probe has failed, as often as it has looked so far.

        It lasts `open_s`, or an eighth of the outage so far, at most `max_open_s` (an `open_s` above it stays as it
        is), shortened by up to the share `jitter` of itself.
        """
        if self.outage_at is None:
            self.outage_at = now
            self._looks = looks
            self._early_s = None if looks == "never" else _EARLY_S
        elif self._early_s is not None and not self.is_over(now):
            while self.outage_at + self._early_s <= now:
                self._early_s = self._early_s + _EARLY_S if self._looks == "often" else self._early_s * _LATER_TIMES
            return
        else:
            self._early_s = None
        grown_s = min((now - self.outage_at) * _SHARE_OF_OUTAGE, max_open_s)
        draw = (self._phase + self._count * _GOLDEN) % 1.0
        self.began_at = now
        self.length_s = max(open_s, grown_s) * (1 - jitter * draw)
        self._count += 1

    def end(self) -> None:
        """The outage is over."""
        self.outage_at = None

    @property
    def is_brownout(self) -> bool:
        """The present outage is none in which nothing is answered."""
        return self.outage_at is not None and self._looks == "often"

    def is_over(self, now: float) -> bool:
        return now >= self.began_at + self.length_s

    def probe_at(self) -> float:
        """When the opening ends, or an early probe is due before that."""
        ends_at = self.began_at + self.length_s
        if self._early_s is None or self.outage_at is None:
            return ends_at
        return min(ends_at, self.outage_at + self._early_s)
