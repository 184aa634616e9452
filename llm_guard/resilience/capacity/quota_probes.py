"""Probes of a small quota, to find out whether it has grown.

Decides when the next probe is due, and which rate follows a probe that got a 429. `resilience.capacity.learned_rate`
runs the probe.
"""

from __future__ import annotations

from math import inf

from llm_guard.resilience.capacity.rate_growth import CUT

ACCEPTED_AFTER_S = 5.0
"""A 429 is fast, any other response may take a minute: a call without a 429 for this long counts as accepted."""

# The first probe comes after so many accepted calls, each further one after sixteen times as many: in a fixed window
# each uses calls that the rest of the window then lacks.
_FIRST_AFTER = 4
_BACKOFF = 16
_MOST_AFTER = 256
# A storm that refuses a third of one call a second looks like a larger quota, and a probe costs those little.
_LARGE_RATE = 0.4
_AFTER_IF_LARGE = 16
# If so many 429s were due and none came, the cause of the quota's 429s is gone: it was a storm, or the quota has grown.
_DUE_429S = 4.0
# Where most of the quota's own calls were refused, it probably was a storm.
_DUE_429S_OF_STORM = 2.0
_MOSTLY_LIMITED = 0.5
_AFTER_IN_DOUBT = 2
# A probe in which so many calls were accepted has found that the quota is not small.
_NOT_SMALL = 24
_MOST_RISE = 1.2
# So small a difference between two numbers of calls is due to calls in flight.
_SAME_SHARE = 0.1
# A guess is about a fixed window of a minute. It is confirmed in the next one or never.
_GUESS_KNOWN_S = 120.0
# A probe may use a whole minute's quota at once. Less than a minute: otherwise nothing would confirm the quota.
_MOST_REPAID_S = 55.0
# A guess may be confirmed by chance although the provider is well: a minute without a call would be an outage.
_TEST_AFTER_S = 5.0
# After a quota is spent, so many 429s in a row cut the rate; then only the pauses grow.
_CUTS_IN_A_ROW = 3
_MOST_DOUBLINGS = 9
_MOST_PAUSE_S = 30.0
# Calls are not kept back for much longer than one interval: it may be a storm.
_LONG_PAUSE_S = 4.0
# Nearly a call a second: the next responses show whether that is too much.
_RATE_AFTER_GUESS = 0.95


class QuotaProbes:
    """Schedule of the probes, and the rate to return to.

    Nearly all calls are accepted at the rate of a small quota, so only a higher rate shows whether it has grown. If
    calls within the quota were refused, there may be a storm that refuses a part of all calls: then the next probe does
    not wait for the schedule.
    """

    __slots__ = (
        "_accepted_before", "_after", "_began_at", "_guess", "_guessed_at", "_is_guess", "_limited", "_limited_share",
        "_rate_before", "paid_back_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self._accepted_before = 0
        self._began_at = -inf
        self._after = _FIRST_AFTER
        self._rate_before: float | None = None
        """Rate of the quota before the probe; None: no probe is running."""
        self._is_guess = False
        self._guess = 0.0
        """Calls a second that were accepted in the minute before the quota was guessed."""
        self._guessed_at = -inf
        self.paid_back_at = -inf
        """Until when a guessed quota that the latest probe has spent refuses all calls."""
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

    def is_due(self, answers: int, in_a_row: int, rate: float, now: float, *, is_doubtful: bool) -> bool:
        """Returns whether enough calls came back without a 429: `answers` since the quota began, or `in_a_row` since
        the latest 429. One is enough while a guessed quota should be spent. `is_doubtful`: there were 429s that no
        quota explains."""
        if now < self.paid_back_at or (is_doubtful and in_a_row >= _AFTER_IN_DOUBT):
            return True
        after = min(self._after, _AFTER_IF_LARGE) if rate >= _LARGE_RATE else self._after
        due = _DUE_429S_OF_STORM if self._limited_share >= _MOSTLY_LIMITED else _DUE_429S
        return answers >= after or self._limited_share * in_a_row >= due

    def is_due_without_answers(self, accepted: int, rate: float) -> bool:
        """Returns whether enough of the calls that got no 429 are old enough to count as accepted."""
        return accepted - rate * ACCEPTED_AFTER_S >= self._after

    def begin(self, rate: float, accepted: int, now: float, *, is_guess: bool) -> None:
        """Begins a probe of a quota with that rate. `accepted`: all calls so far that got no 429. `is_guess`: no call
        has been accepted at that rate yet."""
        self._began_at = now
        self.paid_back_at = -inf
        self._rate_before = rate
        self._accepted_before = accepted
        self._is_guess = is_guess
        self._forget_429s()

    def taken(self, accepted: int) -> int:
        """Returns the number of calls of the latest probe that got no 429; `accepted` counts all so far."""
        return accepted - self._accepted_before

    def begin_pause(self, accepted: int, rate: float, now: float) -> float:
        """Begins the pause that pays back the calls that a probe of a quota took too early. `rate`: of the quota, in
        calls a second. Returns the length of the pause in seconds. A small quota is probably a fixed window, which
        allows nothing until it is renewed. If the quota is a guess, a call tests the guess after five seconds."""
        taken = self.taken(accepted)
        early = taken if rate < _LARGE_RATE else max(0.0, taken - rate * (now - self._began_at))
        pause_s = min(_MOST_REPAID_S, early / rate)
        if not self._is_guess or pause_s <= _TEST_AFTER_S:
            return pause_s
        self.paid_back_at = now + pause_s
        return _TEST_AFTER_S

    def confirm_guess(self) -> float:
        """Notes that the call that tested the guess was refused. Returns when the quota is renewed."""
        self._after = _MOST_AFTER
        return self.paid_back_at

    def end(self, accepted: int, rate: float, quota: float, now: float) -> float | None:
        """Ends the probe after a 429. Returns the rate to continue with; None: the quota is not small any more.

        `accepted`: all calls so far that got no 429. The probe has reached `rate`, and the last minute accepted `quota`
        calls a second.
        """
        before, self._rate_before = self._rate_before, None
        if before is None or self.taken(accepted) >= _NOT_SMALL:
            return None
        self._after = min(_BACKOFF * max(self._after, _FIRST_AFTER), _MOST_AFTER)
        if self._is_guess:
            return max(before, self._guess * CUT if self._has_repeated(accepted, now) else _RATE_AFTER_GUESS)
        return max(before, min(rate / 2, quota * CUT, _MOST_RISE * before))

    def guess(self, rate: float, now: float) -> None:
        """Notes that the quota is a guess: `rate` calls a second were accepted in the minute before all were refused.
        The next probe is due after one accepted call."""
        self._after = 1
        self._guess, self._guessed_at = rate, now

    def reset(self) -> None:
        self._after = _FIRST_AFTER
        self._rate_before = None
        self.paid_back_at = -inf
        self._forget_429s()

    def _has_repeated(self, accepted: int, now: float) -> bool:
        """Returns whether the probe, with the call that began it, met a 429 after as many calls as the guess: a fixed
        window of a minute allows the same number again."""
        if now - self._guessed_at > _GUESS_KNOWN_S:
            return False
        before = 60.0 * self._guess
        return abs(self.taken(accepted) + 1 - before) <= max(1.0, _SAME_SHARE * before)

    def _forget_429s(self) -> None:
        self._limited = 0
        self._limited_share = 0.0


def spent_rate(rate: float, in_a_row: int, accepted: float) -> float | None:
    """Returns the calls a second that a quota appears to accept after the `in_a_row`th 429 at `rate`; None: as before.
    `accepted`: what was accepted recently."""
    if in_a_row > _CUTS_IN_A_ROW:
        return None
    return min(rate, max(rate * CUT if in_a_row == 1 else rate / 2, accepted))


def spent_pause_s(rate: float, in_a_row: int) -> float:
    """Returns for how many seconds no call may go after the `in_a_row`th 429 of a quota of `rate` calls a second. The
    pause doubles with each of them."""
    doublings = min(_MOST_DOUBLINGS, in_a_row - 1)
    return min(_MOST_PAUSE_S, 2.0**doublings / rate, max(_LONG_PAUSE_S, 2 / rate))
