"""Decides when 429s mean that the rate is too high.

Covers the time since the rate was last set. The statistics are in `resilience.capacity.throttle_statistics`;
`resilience.capacity.learned_rate` acts on the result.
"""

from __future__ import annotations

from math import inf

from llm_guard.resilience.capacity.rate_growth import CUT
from llm_guard.resilience.capacity.throttle_statistics import Background, ThrottleWindow

# Up to this share of 429s retries are cheaper than waiting: with four attempts one call in a hundred fails.
_CURED_SHARE = 0.3
# The first 429s carry little information about the accepted rate: for this long only retries handle them.
_FIRST_CUT_AFTER_S = 0.5
_MEASURED_S = 1.0
# If the rate takes effect late, calls of the time before are counted with those after it. A first cut takes a third of
# all calls, so no background is so small that one of its 429s is all there is.
_STRAY_429S = 1
# One cut covers all calls that enter within this time.
_CUT_AGAIN_S = 0.5
# Slow start overshoots. The 429s until the rate has settled are not background.
_SETTLE_S = 60.0


class CutEpoch:
    """The evidence since the rate was last set, by a cut or an opening.

    A 429 need not depend on the rate (a shared quota, load shedding at random), and retries cure random ones. So
    the first cut needs clearly more than 30 % of 429s among the recent calls, and every cut clearly more than the
    `Background`.
    """

    __slots__ = ("_background", "_early_from", "_early_until", "_late_s", "_opened_at", "began_at", "recent")

    def __init__(self, now: float, late_s: float = 0.0) -> None:
        """`late_s`: the rate changes for calls that enter so many seconds after it was set."""
        self._late_s = late_s
        self.began_at = self._early_from = -inf
        self.recent = ThrottleWindow(now)
        self._background = Background(_STRAY_429S if late_s else 0)
        self._opened_at = -inf
        self._early_until = -inf
        """Calls from `_early_from` until then are early calls in the sense of `Background`."""

    def begin(self, now: float) -> None:
        """Notes that the rate was set: earlier calls do not count against it."""
        self.began_at = now
        self._early_from = now + self._late_s
        self.recent.restart(now)

    def begin_opening(self, now: float) -> None:
        self.begin(now)
        self._background.begin()
        self._early_until = self._opened_at = now

    def begin_after_cut(self, now: float) -> None:
        self.begin(now)
        self._early_until = inf if now - self._opened_at >= _SETTLE_S else -inf

    def end(self) -> None:
        """Notes that there is no rate any more."""
        self._early_until = -inf

    def take(self, now: float) -> None:
        """Notes that a call goes."""
        recent = self.recent
        if now >= recent.due_at:
            recent.turn(now)
        recent.calls += 1

    def take_early(self, now: float, *, is_early: bool) -> None:
        """Counts a call that goes as early if `is_early`: the rate is clearly below the one that was cut."""
        if self._early_from <= now < self._early_until:
            if is_early:
                self._background.note_call()
            else:
                self._early_until = now

    def put_back(self, entered_at: float) -> None:
        """Notes that the call that went at `entered_at` did not go after all."""
        self.recent.uncount(entered_at)
        if self._is_early(entered_at):
            self._background.note_call(-1)

    def note_rate_limited(self, entered_at: float, answers: int, now: float) -> None:
        """Notes a 429 for the call that went at `entered_at`. `answers`: accepted calls in a row before."""
        self.recent.note_limited(entered_at, now)
        self._background.note_row(answers)
        if self._is_early(entered_at):
            self._background.note_limited()

    def covers(self, entered_at: float) -> bool:
        """Returns whether a call is too old for its 429 to be evidence against the present rate."""
        return entered_at - self._early_from < _CUT_AGAIN_S

    def needs_first_cut(self, now: float) -> bool:
        """Returns whether there are enough 429s to begin pacing."""
        share = max(self._background.share(now), _CURED_SHARE)
        recent = self.recent
        is_evident = recent.is_more_than(share) or recent.is_spent(share)
        return is_evident and recent.has_lasted(_FIRST_CUT_AFTER_S, now)

    def needs_cut(self, now: float) -> bool:
        """Returns whether there are enough 429s to lower the rate."""
        return self.recent.is_telling() and self.recent.is_more_than(self._background.share(now))

    def is_in_vain(self, entered_at: float, now: float) -> bool:
        """Returns whether this epoch, which the 429 for the call that entered then ends, is the third that did not
        help."""
        answered = (entered_at - self._early_from) / (now - self._early_from) if self._early_until == inf else 1.0
        return self._background.is_in_vain(answered, now)

    def restart_background(self) -> None:
        """Notes that pacing begins: epochs of an earlier rate do not count towards a background."""
        self._background.begin()

    def first_accepted_rate(self, now: float) -> float:
        """Returns the rate accepted while nothing was paced, in calls a second."""
        return self.recent.accepted_rate_at_most(now, _MEASURED_S)

    def accepted_rate(self, now: float) -> float:
        """Returns the recently accepted rate, in calls a second."""
        return self.recent.accepted_rate(now, _CUT_AGAIN_S)

    def limit(self, accepted: float, now: float) -> float:
        """Returns the estimated limit of the provider at which so many calls a second are accepted."""
        # The background share of calls is never accepted. Then the cut is deeper: it must lead below the limit, or the
        # limit's 429s would be mistaken for background forever.
        background = self._background.share(now)
        return accepted * CUT / (1 - background) if background else accepted

    def _is_early(self, entered_at: float) -> bool:
        return self._early_from <= entered_at < self._early_until
