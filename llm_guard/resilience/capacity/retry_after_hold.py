"""A hold: a wait that a provider requests of all calls (Retry-After), and the probe that ends it.

Decides which hints apply to all calls, when the wait ends and which call is the probe. The rate is in
`resilience.capacity.pacer`, the cap of a wait in `proxy.attempts.admission`.
"""

from __future__ import annotations

from math import inf

LOOK_S = 5.0
"""The hold ends if the probe has not returned for this long: a refusal is fast, a success may take minutes."""

_LOOK_AGAIN_S = 1.0

# One 429 may be about one large request. If calls were accepted in spite of a hint, more 429s must agree.
_ROW = 2
_ROW_OF_CONTRADICTED = 6
_CONTRADICTED_S = 60.0
# Waits that end within this time of each other end at one instant: a Retry-After is rounded to whole seconds.
_SAME_END_S = 1.0


class RetryAfterHold:
    """No call enters before `until`. Then one call enters as a probe, and the rest wait for its result:

    - any response but a 429: the gate opens;
    - a 429 with another hint: the hold begins again (`begin`); without one, another probe goes a second later;
    - it is ignored or never used: another probe goes at once;
    - it does not return within `LOOK_S`: the gate opens.
    """

    __slots__ = ("_first_look_at", "_look_at", "_next_look_at", "since", "until")

    def __init__(self) -> None:
        self.since: float | None = None
        self.until = self._next_look_at = -inf
        self._first_look_at = self._look_at = inf

    @property
    def is_active(self) -> bool:
        """True if a wait or the probe after it is in progress."""
        return self.since is not None

    def begin(self, until: float, now: float) -> None:
        """Begins a hold. A shorter one does not cut a longer one short."""
        if self.since is None:
            self.since = now
        if until > self.until:
            self.until = self._next_look_at = until
            self._first_look_at = self._look_at = inf

    def expire(self, now: float) -> None:
        """Ends the wait, not the probe after it."""
        if now < self.until:
            self.until = self._next_look_at = now

    def lift(self) -> None:
        """Ends the wait and the probe."""
        self.since = None
        self.until = self._next_look_at = -inf
        self._first_look_at = self._look_at = inf

    def opens_at(self) -> float:
        """Returns the instant from which the next call may enter; -inf: there is no hold."""
        return self._next_look_at

    def is_looking(self, now: float) -> bool:
        """Returns whether the wait is over, but no response has shown yet that calls are accepted."""
        return self.since is not None and now >= self.until

    def take(self, now: float) -> bool:
        """Notes that a call enters during the hold, as a probe. Returns whether that ends the hold instead, because the
        previous probe was not refused in time."""
        if now >= self._look_at + LOOK_S:
            self.lift()
            return True
        self._first_look_at = min(self._first_look_at, now)
        self._look_at = now
        self._next_look_at = now + LOOK_S
        return False

    def note_answer(self, entered_at: float) -> bool:
        """Notes any other response than a 429. Returns whether that ends the hold."""
        if self.since is None or entered_at < self._first_look_at:
            return False
        self.lift()
        return True

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """Notes a 429."""
        if entered_at == self._look_at:
            self._look_at = inf
            self._next_look_at = now + _LOOK_AGAIN_S

    def note_unused(self, entered_at: float) -> None:
        """Notes that a call was never sent, or that its client disconnected: it is not evidence of anything."""
        if entered_at == self._look_at:
            self._look_at = inf
            self._next_look_at = self.until


class RetryAfterEvidence:
    """Decides whether the Retry-After of a 429 applies to all calls, or only to the refused one.

    It applies to all calls if none was accepted between two 429s. A provider may send it with each 429 while it accepts
    half of the calls: an accepted call that entered before the hint's end contradicts it, and for a minute only a row
    of six 429s counts. If as many calls were accepted as a known quota allows, one 429 is enough.
    """

    __slots__ = (
        "_contradicted_until", "_hinted_at", "_hinted_until", "_latest_at", "_latest_until", "_row", "is_renewal",
    )  # fmt: skip

    def __init__(self) -> None:
        self._row = 0
        """429s since the last accepted call."""
        self._hinted_at = self._hinted_until = self._contradicted_until = -inf
        self._latest_at = self._latest_until = -inf
        self.is_renewal = False
        """True if the two latest hints, given at different times, end at one instant: that of a quota's renewal."""

    def note_rate_limited(self) -> None:
        """Notes a 429."""
        self._row += 1

    def note_accepted(self, entered_at: float, now: float) -> None:
        """Notes a success of the call that went at `entered_at`."""
        self._row = 0
        if self._hinted_at < entered_at < self._hinted_until:
            self._contradicted_until = now + _CONTRADICTED_S

    def note_hint(self, until: float, now: float, *, fits_quota: bool = False) -> bool:
        """Notes that the latest 429 requests a wait until `until`. Returns whether that applies to all calls.
        `fits_quota`: the 429 came after as many accepted calls as a known quota allows."""
        if now >= self._hinted_until:
            self._hinted_at = now
        self._hinted_until = max(self._hinted_until, until)
        self.is_renewal = abs(until - self._latest_until) <= min(_SAME_END_S, (now - self._latest_at) / 2)
        self._latest_at, self._latest_until = now, until
        if now < self._contradicted_until:
            return self._row >= _ROW_OF_CONTRADICTED
        return fits_quota or self._row >= _ROW
