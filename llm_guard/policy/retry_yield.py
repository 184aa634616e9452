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


class RetryYield:
    """Decaying counts of first attempts and of retries, and of those that succeeded.

    Where failures are random a retry succeeds as often as a first attempt. Where some requests fail always, by their
    content, retries are all made for those, and hardly any succeeds.
    """

    __slots__ = ("_faded_at", "_first", "_first_ok", "_retries", "_retries_ok")

    def __init__(self, now: float) -> None:
        self._faded_at = now
        self._first = self._first_ok = self._retries = self._retries_ok = 0.0

    def note(self, is_failure: bool, now: float, *, is_retry: bool) -> None:
        """An attempt ended, or its answer began."""
        if now - self._faded_at > _FADE_EACH_S:
            self._fade(now)
        if is_retry:
            self._retries += 1
            self._retries_ok += not is_failure
        else:
            self._first += 1
            self._first_ok += not is_failure

    def note_first_ok(self, count: int, now: float) -> None:
        """So many first attempts succeeded since the last call."""
        if now - self._faded_at > _FADE_EACH_S:
            self._fade(now)
        self._first += count
        self._first_ok += count

    def relative(self) -> float:
        """How often retries succeed, as a share of how often first attempts do: 0 to 1."""
        first_share = (self._first_ok + 1) / (self._first + 1)
        return min(1.0, self._retries_ok / (self._retries + _DOUBT) / first_share)

    def success_share(self) -> float:
        """Of all attempts: 0 to 1."""
        ok = self._first_ok + self._retries_ok + _UNKNOWN * _GUESSED_SHARE
        return ok / (self._first + self._retries + _UNKNOWN)

    def _fade(self, now: float) -> None:
        kept = math.exp((self._faded_at - now) / FADE_S)
        self._faded_at = now
        self._first *= kept
        self._first_ok *= kept
        self._retries *= kept
        self._retries_ok *= kept
