"""Callers that a provider refuses with 429 while it accepts others: they keep to a pace of their own.

A provider may limit one user of an account, or the size of one tenant's requests. Decides which callers are apart, and
how one of them leaves. The pace is in `resilience.capacity.pacing`; `proxy.caller_identity` identifies a call's caller.
"""

from __future__ import annotations

from math import log

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.capacity.pacing import Pace

MOST_CALLERS = 1024
"""Callers that are remembered; the one that was refused longest ago is dropped first."""

# A caller leaves the others once chance explains less often than this that it is accepted right after they are refused.
# Among callers with one limit either is as likely to be refused (McNemar's test, in sequential form: each pair of
# neighbouring responses counts once, and the sum does not fall below 0).
_CHANCE = 1e-5
_FORGOTTEN_S = 60.0
_ENOUGH = -log(_CHANCE)
_ACCEPTED_ALONE = log(0.95 / 0.5)
_REFUSED_ALONE = log(0.05 / 0.5)
# The limit is that of all callers once the responses to the others are so much more likely if half of them are 429s
# than if one in twenty is (a CUSUM test). A rate cannot be learned from a part of the calls that share a limit: calls
# of the callers apart would then get 429s at any rate.
_SHARED_CHANCE = 4e-3
_SHARED = -log(_SHARED_CHANCE)
_REFUSED_TOO = log(0.5 / 0.05)
_ACCEPTED_BESIDE = log(0.5 / 0.95)


class ThrottledCallers:
    """The callers that keep to `pace`, and the evidence for which of them does not belong to the others."""

    __slots__ = ("_latest_at", "_refused", "_refused_at", "_scores", "_shared_score", "has_all", "pace")

    def __init__(self, pace: Pace, callers: list[str], now: float) -> None:
        self.pace = pace
        self._latest_at = now
        """When one of them was last refused."""
        self._scores = BoundedMap[str, float](MOST_CALLERS)
        self._refused: str | None = None
        """The caller of the latest refusal that has not been compared with an accepted call yet."""
        self._refused_at = 0.0
        """When the first call of its latest refusals in a row entered."""
        self._shared_score = 0.0
        """Evidence, as a log likelihood ratio, that the limit is that of all callers."""
        self.has_all = False
        """True if the limit is that of all callers, including those not listed here."""
        self.join(callers)

    @property
    def callers(self) -> tuple[str, ...]:
        return tuple(self._scores)

    def has(self, caller: str) -> bool:
        return self.has_all or caller in self._scores

    def join(self, callers: list[str]) -> None:
        for caller in callers:
            self._scores[caller] = 0.0

    def leave(self, caller: str) -> None:
        self._scores.pop(caller, None)
        self.has_all = False
        self._shared_score = 0.0

    def is_over(self, now: float) -> bool:
        """Returns whether nothing limits these callers any more. Until then a pace that is given up for a while keeps
        what it has learned."""
        return not self.pace.is_limited and now - self._latest_at >= _FORGOTTEN_S

    def note_refused(self, caller: str, entered_at: float, now: float) -> None:
        """Notes that one of these callers was refused."""
        self._latest_at = now
        if self._refused != caller:
            self._refused, self._refused_at = caller, entered_at

    def note_other_refused(self) -> None:
        """Counts a 429 of a caller that is not apart; it may show that the limit is that of all callers. Does not join
        them while the limit stops all calls: a caller with a limit of its own could not show that any more."""
        self._shared_score += _REFUSED_TOO
        if self._shared_score >= _SHARED and self.pace.is_accepting:
            self.has_all = True

    def note_other_accepted(self) -> None:
        """Counts an accepted call of a caller that is not apart."""
        self._shared_score = max(0.0, min(self._shared_score, _SHARED) + _ACCEPTED_BESIDE)

    def note_accepted(self, caller: str, entered_at: float) -> bool:
        """Notes that one of these callers was accepted. Returns whether it does not belong to the others."""
        refused = self._refused
        if refused is None or entered_at < self._refused_at:
            return False
        self._refused = None
        if refused == caller:
            return False
        if refused in self._scores:
            self._scores[refused] = max(0.0, self._scores[refused] + _REFUSED_ALONE)
        if caller not in self._scores:
            self.join([caller])
        self._scores[caller] += _ACCEPTED_ALONE
        return self._scores[caller] >= _ENOUGH
