"""Silences: alerts for which no notification is sent for a while.

The alert itself continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EVERY = "*"
MOST = 200
"""Most silences at once."""


@dataclass(frozen=True, slots=True)
class Silence:
    """An operator's silence of an alert that is known."""

    alert: str
    """A rule, or `*` for all."""
    subject: str | None
    """None: all subjects."""
    until: float
    reason: str
    who: str


class Silences:
    """All silences, one for each alert and subject: a second replaces the first."""

    def __init__(self) -> None:
        self._silences: dict[tuple[str, str | None], Silence] = {}

    def try_add(self, silence: Silence, now: float) -> bool:
        """Adds a silence; False: there are too many."""
        self._expire(now)
        key = (silence.alert, silence.subject)
        if key not in self._silences and len(self._silences) >= MOST:
            return False
        self._silences[key] = silence
        return True

    def try_remove(self, alert: str, subject: str | None, now: float) -> Silence | None:
        """Removes and returns the silence of exactly this alert and subject, if there is one."""
        self._expire(now)
        return self._silences.pop((alert, subject), None)

    def covers(self, alert: str, subject: str, now: float) -> bool:
        """Returns whether notifications of this alert are silenced."""
        keys = ((alert, subject), (alert, None), (EVERY, subject), (EVERY, None))
        return any((silence := self._silences.get(key)) is not None and silence.until > now for key in keys)

    def snapshot(self, now: float) -> Sequence[Silence]:
        """Silences in effect, the first to end first."""
        self._expire(now)
        return tuple(sorted(self._silences.values(), key=lambda silence: silence.until))

    def _expire(self, now: float) -> None:
        self._silences = {key: silence for key, silence in self._silences.items() if silence.until > now}
