"""Probes of a small quota: whether it has grown.

Owns when the next probe is due, and which rate follows a probe that met a 429. Does not own how a probe goes
(`policy.learned_rate`).
"""

from __future__ import annotations

from llm_guard.policy.rate_growth import CUT

ACCEPTED_AFTER_S = 5.0
"""A 429 is fast, any other answer may take a minute: a call without a 429 for this long counts as accepted."""

# The first probe comes after so many accepted calls, each further one after sixteen times as many: in a fixed window
# each takes calls that the rest of the window then lacks.
_FIRST_AFTER = 4
_BACKOFF = 16
_MOST_AFTER = 256
# A probe in which so many calls were accepted has found that the quota is not small.
_NOT_SMALL = 24
_MOST_RISE = 1.2
# Nearly a call a second: the next answers show whether that is too much.
_RATE_AFTER_GUESS = 0.95


class QuotaProbes:
    """The schedule of the probes, and the rate to return to.

    Nearly all calls are accepted at the rate of a small quota, so only a higher rate shows whether the quota has
    grown.
    """

    __slots__ = ("_accepted_before", "_after", "_is_guess", "_rate_before")

    def __init__(self) -> None:
        self._accepted_before = 0
        self._after = _FIRST_AFTER
        self._rate_before: float | None = None
        """Of the quota; None: no probe is running."""
        self._is_guess = False

    @property
    def is_running(self) -> bool:
        return self._rate_before is not None

    def is_due(self, answers: int) -> bool:
        """Whether enough calls came back without a 429."""
        return answers >= self._after

    def is_due_without_answers(self, accepted: int, rate: float) -> bool:
        """Whether enough of the calls that met no 429 are old enough to count as accepted."""
        return accepted - rate * ACCEPTED_AFTER_S >= self._after

    def begin(self, rate: float, accepted: int, *, is_guess: bool) -> None:
        """A probe begins, of a quota with that rate. `accepted` counts all calls so far that met no 429. `is_guess`: no
        call has been accepted at that rate yet."""
        self._rate_before = rate
        self._accepted_before = accepted
        self._is_guess = is_guess

    def taken(self, accepted: int) -> int:
        """Calls of the latest probe that met no 429; `accepted` counts all so far."""
        return accepted - self._accepted_before

    def end(self, accepted: int, rate: float, quota: float) -> float | None:
        """The running probe met a 429. Returns the rate to go on with; None: the quota is not small any more.

        `accepted` counts all calls so far that met no 429. The probe has reached `rate`, and the last minute accepted
        `quota` calls a second.
        """
        before, self._rate_before = self._rate_before, None
        if before is None or self.taken(accepted) >= _NOT_SMALL:
            return None
        self._after = min(_BACKOFF * max(self._after, _FIRST_AFTER), _MOST_AFTER)
        if self._is_guess:
            return max(before, _RATE_AFTER_GUESS)
        return max(before, min(rate / 2, quota * CUT, _MOST_RISE * before))

    def require_one_answer(self) -> None:
        """Makes the next probe due after one accepted call: the quota is a guess."""
        self._after = 1

    def reset(self) -> None:
        self._after = _FIRST_AFTER
        self._rate_before = None
