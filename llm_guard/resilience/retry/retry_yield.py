"""Retry yield: how often retries succeed, compared with first attempts.

`resilience.retry.limits` sets its ratio by it.
"""

from __future__ import annotations

import math

FADE_S = 30.0
"""Time constant with which attempts lose their weight."""

_FADE_EACH_S = 0.5
# Number of failed retries assumed from the start: a good yield has to be shown.
_DOUBT = 5.0
# Weight, in attempts, of the assumption that one attempt in ten succeeds.
_UNKNOWN = 50.0
_GUESSED_SHARE = 0.1
# Weight of the latest first attempt in the moving share of those that succeed. Its memory is short: a retry is compared
# with the first attempts of the same moment, and not with those from before the failures began.
_WEIGHT = 1 / 20
_ALL = 0.999
_LEAST = 1e-6


class RetryYield:
    """Decaying counts of attempts and retries, and of those that succeeded.

    If failures are random, a retry succeeds as often as a first attempt. If some requests always fail by their content,
    all retries are made for those, and hardly any succeeds.
    """

    __slots__ = ("_attempts", "_expected_ok", "_faded_at", "_first_share", "_ok", "_retries_ok")

    def __init__(self, now: float) -> None:
        self._faded_at = now
        self._attempts = self._ok = self._retries_ok = 0.0
        self._expected_ok = 0.0
        """Number of retries that would have succeeded at the success rate of first attempts."""
        self._first_share = 1.0
        """Moving share of the first attempts that succeed."""

    def note(self, is_failure: bool, now: float, *, is_retry: bool) -> None:
        """Notes the end of an attempt, or the beginning of its response."""
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
        """Notes so many first attempts in a row that succeeded since the last attempt that was noted."""
        if now - self._faded_at > _FADE_EACH_S:
            self._fade(now)
        self._attempts += count
        self._ok += count
        if self._first_share < _ALL:
            self._first_share = 1 - (1 - self._first_share) * (1 - _WEIGHT) ** count

    def relative(self) -> float:
        """Returns how often retries succeed, as a share of how often first attempts do: 0 to 1."""
        expected_ok = self._expected_ok + _DOUBT * self._first_share
        return min(1.0, self._retries_ok / max(_LEAST, expected_ok))

    def success_share(self) -> float:
        """Returns the success rate of all attempts: 0 to 1."""
        return (self._ok + _UNKNOWN * _GUESSED_SHARE) / (self._attempts + _UNKNOWN)

    def _fade(self, now: float) -> None:
        kept = math.exp((self._faded_at - now) / FADE_S)
        self._faded_at = now
        self._attempts *= kept
        self._ok *= kept
        self._expected_ok *= kept
        self._retries_ok *= kept
