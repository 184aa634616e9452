"""What retries achieve: how often they succeed, beside first attempts.

Owns these shares. Does not own what follows from them (`policy.retry_budget`).
"""

from __future__ import annotations

import math

FADE_S = 30.0
"""Time constant with which attempts lose their weight."""

_FADE_EACH_S = 0.5
# So many retries that failed are taken for granted: a good yield has to be shown.
_DOUBT = 5.0
# As long as so few attempts are known, one in ten of them is taken to succeed.
_UNKNOWN = 50.0
_GUESSED_SHARE = 0.1
# Weight of the latest first attempt in the moving share of those that succeed. Its memory is short: a retry is compared
# with the first attempts of the same moment, and not with those from before the failures began.
_WEIGHT = 1 / 20
_ALL = 0.999
_LEAST = 1e-6


class RetryYield:
    """Decaying counts of attempts and retries, and of those that succeeded.

    Where failures are random a retry succeeds as often as a first attempt. Where some requests fail always, by their
    content, retries are all made for those, and hardly any succeeds.
    """

    __slots__ = ("_attempts", "_expected_ok", "_faded_at", "_first_share", "_ok", "_retries_ok")

    def __init__(self, now: float) -> None:
        self._faded_at = now
        self._attempts = self._ok = self._retries_ok = 0.0
        self._expected_ok = 0.0
        """How many of the retries would have succeeded as often as first attempts did."""
        self._first_share = 1.0
        """Moving share of the first attempts that succeed."""

    def note(self, is_failure: bool, now: float, *, is_retry: bool) -> None:
        """An attempt ended, or its answer began."""
        if now - self._faded_at > _FADE_EACH_S:
            self._fade(now)
        self._attempts += 1
        self._ok += not is_failure
        if is_retry:
            self._expected_ok += self._first_share
            self._retries_ok += not is_failure
        elif is_failure or self._first_share < _ALL:
            self._first_share += _WEIGHT * (1.0 - is_failure - self._first_share)

    def note_first_ok(self, count: int, now: float) -> None:
        """So many first attempts in a row succeeded since the last attempt that was noted."""
        if now - self._faded_at > _FADE_EACH_S:
            self._fade(now)
        self._attempts += count
        self._ok += count
        if self._first_share < _ALL:
            self._first_share = 1 - (1 - self._first_share) * (1 - _WEIGHT) ** count

    def relative(self) -> float:
        """How often retries succeed, as a share of how often first attempts do: 0 to 1."""
        expected_ok = self._expected_ok + _DOUBT * self._first_share
        return min(1.0, self._retries_ok / max(_LEAST, expected_ok))

    def success_share(self) -> float:
        """Of all attempts: 0 to 1."""
        return (self._ok + _UNKNOWN * _GUESSED_SHARE) / (self._attempts + _UNKNOWN)

    def _fade(self, now: float) -> None:
        kept = math.exp((self._faded_at - now) / FADE_S)
        self._faded_at = now
        self._attempts *= kept
        self._ok *= kept
        self._expected_ok *= kept
        self._retries_ok *= kept
