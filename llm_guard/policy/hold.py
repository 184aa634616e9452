"""A wait that a provider asks of all calls (Retry-After), and the one call that looks when it is over.

Owns which hints are about all calls, when the wait ends and which call looks. Does not own the rate (`policy.pacer`)
or the cap of a wait (`gateway.settle`).
"""

from __future__ import annotations

from math import inf

LOOK_S = 5.0
"""The hold is over when the call that looks has not come back for so long: a refusal is fast, an answer may take
minutes."""

_LOOK_AGAIN_S = 1.0

# One 429 may be about one large request. Where calls were accepted in spite of a hint, more of them must agree.
_ROW = 2
_ROW_OF_CONTRADICTED = 6
_CONTRADICTED_S = 60.0


class Hold:
    """Nothing enters before `until`. Then one call enters, and the rest wait for what becomes of it:

    - any answer but a 429, the gate opens;
    - a 429 with another hint, the hold begins again (`begin`); without one another call looks a second later;
    - it is ignored or never used, another call looks at once;
    - it does not come back within `LOOK_S`, the gate opens.
    """

    __slots__ = ("_first_look_at", "_look_at", "_next_look_at", "since", "until")

    def __init__(self) -> None:
        self.since: float | None = None
        self.until = self._next_look_at = -inf
        self._first_look_at = self._look_at = inf

    @property
    def is_active(self) -> bool:
        """Whether a wait or the look after it is not over."""
        return self.since is not None

    def begin(self, until: float, now: float) -> None:
        """A shorter hold does not cut a longer one short."""
        if self.since is None:
            self.since = now
        if until > self.until:
            self.until = self._next_look_at = until
            self._first_look_at = self._look_at = inf

    def expire(self, now: float) -> None:
        """Ends the wait, not the look after it."""
        if now < self.until:
            self.until = self._next_look_at = now

    def lift(self) -> None:
        """Ends the wait and the look."""
        self.since = None
        self.until = self._next_look_at = -inf
        self._first_look_at = self._look_at = inf

    def opens_at(self) -> float:
        """From when on the next call may enter; -inf: there is no hold."""
        return self._next_look_at

    def is_looking(self, now: float) -> bool:
        """Whether the wait is over, and no answer has shown yet that calls are taken."""
        return self.since is not None and now >= self.until

    def take(self, now: float) -> bool:
        """A call enters while the hold is active: it looks. Whether that ends the hold instead, because the call before
        it was not refused in time."""
        if now >= self._look_at + LOOK_S:
            self.lift()
            return True
        self._first_look_at = min(self._first_look_at, now)
        self._look_at = now
        self._next_look_at = now + LOOK_S
        return False

    def note_answer(self, entered_at: float) -> bool:
        """A call came back with anything but a 429. Whether that ends the hold."""
        if self.since is None or entered_at < self._first_look_at:
            return False
        self.lift()
        return True

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """A call came back with a 429."""
        if entered_at == self._look_at:
            self._look_at = inf
            self._next_look_at = now + _LOOK_AGAIN_S

    def note_unused(self, entered_at: float) -> None:
        """A call was never sent, or its client left: it shows nothing."""
        if entered_at == self._look_at:
            self._look_at = inf
            self._next_look_at = self.until


class RetryAfterEvidence:
    """Whether the Retry-After of a 429 is about all calls, or only about the refused one.

    It is about all calls if nothing was accepted between two 429s. A provider may send it with each 429 while it
    accepts half of the calls: an accepted call that entered before the hint ran out contradicts it, and for a minute
    only a row of six 429s counts.
    """

    __slots__ = ("_contradicted_until", "_hinted_at", "_hinted_until", "_row")

    def __init__(self) -> None:
        self._row = 0
        """429s since an accepted call."""
        self._hinted_at = self._hinted_until = self._contradicted_until = -inf

    def note_rate_limited(self) -> None:
        """A call came back with a 429."""
        self._row += 1

    def note_accepted(self, entered_at: float, now: float) -> None:
        """The call that went at `entered_at` was served."""
        self._row = 0
        if self._hinted_at < entered_at < self._hinted_until:
            self._contradicted_until = now + _CONTRADICTED_S

    def note_hint(self, until: float, now: float) -> bool:
        """The latest 429 asks for a wait until then. Returns whether that is about all calls."""
        if now >= self._hinted_until:
            self._hinted_at = now
        self._hinted_until = max(self._hinted_until, until)
        return self._row >= (_ROW_OF_CONTRADICTED if now < self._contradicted_until else _ROW)
