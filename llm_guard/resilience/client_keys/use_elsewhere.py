"""What the other gateways of a fleet have used of the limits of one client key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.client_keys.limit_states import ClientUse

# Gateways that have left.
_MOST_GONE = 1024


class UseElsewhere:
    """The latest use of each other gateway, by its id. What a gateway that has left used today counts until the day's
    end, also for gateways that come later: those that knew it tell them."""

    __slots__ = ("_gone", "_is_counting", "_resets", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, ClientUse] | None = None
        """None: nothing is known yet."""
        self._gone = BoundedMap[str, ClientUse](_MOST_GONE)
        self._is_counting = True
        self._resets = 0

    def note(self, uses: Mapping[str, ClientUse], day: int) -> tuple[int, int]:
        """Notes the present use of all gateways that are there; returns their calls and tokens since the last time, as
        they count for rate and minute. Nothing is known of what they did before the first time."""
        is_counted, self._is_counting = self._is_counting and self._seen is not None, True
        before = self._seen or {}
        known = {**self._gone, **before}  # one that comes back was away, and did not begin anew
        pairs = [(use, known.get(replica, ClientUse())) for replica, use in uses.items()] if is_counted else []
        for replica in before.keys() - uses.keys():
            self._gone[replica] = before[replica]
        for replica in [one for one, use in self._gone.items() if one in uses or use.day != day]:
            del self._gone[replica]
        self._seen = dict(uses)
        return sum(use.calls - was.calls for use, was in pairs), sum(use.tokens - was.tokens for use, was in pairs)

    def pause(self) -> None:
        """Does not count what is used from now until the next `note`: each gateway has used its own part."""
        self._is_counting = False

    def follow_reset(self, resets: int) -> None:
        """Forgets the use of this day if there was a reset of the limits since this was last called; `resets` are all
        so far."""
        if resets != self._resets:
            self._gone.clear()
            self._seen = None if self._seen is None else {of: before_reset(use) for of, use in self._seen.items()}
            self._resets = resets

    def day_gone(self, day: int) -> int:
        """Returns the tokens that processes which have ended used on this day: as seen here, as their successors have
        restored them, or as another gateway knows."""
        here = [use for use in (self._seen or {}).values() if use.day == day]
        seen = sum(use.day_tokens for use in self._gone.values() if use.day == day)
        restored = sum(use.day_restored for use in here)
        return max([seen, restored, *(use.day_gone for use in here)])

    def day_tokens(self, day: int) -> int:
        """Returns the tokens that all other gateways used on this day."""
        return sum(use.day_tokens for use in (self._seen or {}).values() if use.day == day) + self.day_gone(day)


def before_reset(use: ClientUse) -> ClientUse:
    """Returns what still counts of a use before a reset."""
    return replace(use, day_tokens=0, day_restored=0, day_gone=0)
