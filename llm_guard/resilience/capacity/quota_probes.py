"""Probes of a small quota, to find out whether it has grown.

Decides when the next probe is due, and which rate follows a probe that got a 429. `resilience.capacity.learned_rate`
runs the probe.
"""

from __future__ import annotations

from llm_guard.resilience.capacity.rate_growth import CUT

ACCEPTED_AFTER_S = 5.0
"""A 429 is fast, any other response may take a minute: a call without a 429 for this long counts as accepted."""

# The first probe comes after so many accepted calls, each further one after sixteen times as many: in a fixed window
# each uses calls that the rest of the window then lacks.
_FIRST_AFTER = 4
_BACKOFF = 16
_MOST_AFTER = 256
# If so many 429s were due and none came, the cause of the quota's 429s is gone: it was a storm, or the quota has grown.
_DUE_429S = 4.0
# A probe in which so many calls were accepted has found that the quota is not small.
_NOT_SMALL = 24
_MOST_RISE = 1.2
# So small a difference between two numbers of calls is due to calls in flight.
_SAME_SHARE = 0.1
# Nearly a call a second: the next responses show whether that is too much.
_RATE_AFTER_GUESS = 0.95


class QuotaProbes:
    """Schedule of the probes, and the rate to return to.

    Nearly all calls are accepted at the rate of a small quota, so only a higher rate shows whether it has grown. If
    calls within the quota were refused, there may be a storm that refuses a part of all calls: then the next probe does
    not wait for the schedule.
    """

    __slots__ = ("_accepted_before", "_after", "_guess", "_is_guess", "_limited", "_limited_share", "_rate_before")

    def __init__(self) -> None:
        self._accepted_before = 0
        self._after = _FIRST_AFTER
        self._rate_before: float | None = None
        """Rate of the quota before the probe; None: no probe is running."""
        self._is_guess = False
        self._guess = 0.0
        """Calls a second that were accepted in the minute before the quota was guessed."""
        self._limited = 0
        """429s within the quota since the latest probe."""
        self._limited_share = 0.0
        """Their share of the calls until the latest 429."""

    @property
    def is_running(self) -> bool:
        return self._rate_before is not None

    def note_rate_limited(self, answers: int) -> None:
        """Notes a 429 within the quota. `answers`: calls without a 429 since the quota began."""
        self._limited += 1
        self._limited_share = self._limited / (self._limited + answers + 1)

    def is_due(self, answers: int, in_a_row: int) -> bool:
        """Returns whether enough calls came back without a 429: since the quota began, or since the latest 429."""
        return answers >= self._after or self._limited_share * in_a_row >= _DUE_429S

    def is_due_without_answers(self, accepted: int, rate: float) -> bool:
        """Returns whether enough of the calls that got no 429 are old enough to count as accepted."""
        return accepted - rate * ACCEPTED_AFTER_S >= self._after

    def begin(self, rate: float, accepted: int, *, is_guess: bool) -> None:
        """Begins a probe of a quota with that rate. `accepted`: all calls so far that got no 429. `is_guess`: no call
        has been accepted at that rate yet."""
        self._rate_before = rate
        self._accepted_before = accepted
        self._is_guess = is_guess
        self._forget_429s()

    def taken(self, accepted: int) -> int:
        """Returns the number of calls of the latest probe that got no 429; `accepted` counts all so far."""
        return accepted - self._accepted_before

    def end(self, accepted: int, rate: float, quota: float) -> float | None:
        """Ends the probe after a 429. Returns the rate to continue with; None: the quota is not small any more.

        `accepted`: all calls so far that got no 429. The probe has reached `rate`, and the last minute accepted `quota`
        calls a second.
        """
        before, self._rate_before = self._rate_before, None
        if before is None or self.taken(accepted) >= _NOT_SMALL:
            return None
        self._after = min(_BACKOFF * max(self._after, _FIRST_AFTER), _MOST_AFTER)
        if self._is_guess:
            return max(before, self._guess * CUT if self._has_repeated(accepted) else _RATE_AFTER_GUESS)
        return max(before, min(rate / 2, quota * CUT, _MOST_RISE * before))

    def guess(self, rate: float) -> None:
        """Notes that the quota is a guess: `rate` calls a second were accepted in the minute before all were refused.
        The next probe is due after one accepted call."""
        self._after = 1
        self._guess = rate

    def reset(self) -> None:
        self._after = _FIRST_AFTER
        self._rate_before = None
        self._forget_429s()

    def _has_repeated(self, accepted: int) -> bool:
        """Returns whether the probe, with the call that began it, met a 429 after as many calls as the guess: a fixed
        window allows the same number again."""
        before = 60.0 * self._guess
        return abs(self.taken(accepted) + 1 - before) <= max(1.0, _SAME_SHARE * before)

    def _forget_429s(self) -> None:
        self._limited = 0
        self._limited_share = 0.0
