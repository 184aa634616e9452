"""How long to wait before a worker that has ended is started again."""

from __future__ import annotations

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STABLE_S = 60.0
"""A worker that has run for so long was well: its restart does not wait."""


class RestartBackoff:
    """The restarts of one worker: the first at once, then with doubling waits."""

    def __init__(self) -> None:
        self._failures = 0

    def wait_s(self, ran_s: float) -> float:
        """Returns the seconds to wait, given how long the worker has run."""
        if ran_s >= _STABLE_S:
            self._failures = 0
        self._failures += 1
        return 0.0 if self._failures == 1 else min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(self._failures - 2, 10))


class HangWatch:
    """Notices that a worker hangs, if it is looked at at intervals. Counts looks, not seconds: after a pause of the
    whole machine its messages arrive before the next look."""

    def __init__(self, most_looks: int) -> None:
        """`most_looks`: with so many looks in a row without a beat it hangs."""
        self._most_looks = most_looks
        self._beats = 0
        self._silent = 0

    def look(self, beats: int) -> bool:
        """Returns whether it hangs; `beats` is the number of beats so far."""
        self._silent = 0 if beats != self._beats else self._silent + 1
        self._beats = beats
        return self._silent >= self._most_looks
