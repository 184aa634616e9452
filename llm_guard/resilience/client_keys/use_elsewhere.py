"""What the other gateways of a fleet have used of the limits of one client key."""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.client_keys.limit_states import ClientUse

# Gateways that have left.
_MOST_GONE = 1024


class UseElsewhere:
    """The latest use of each other gateway, by its id. What a gateway that has left used today counts until the day's
    end, also for gateways that come later: those that knew it tell them."""

    __slots__ = ("_gone", "_is_counting", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, ClientUse] = {}
        self._gone = BoundedMap[str, ClientUse](_MOST_GONE)
        self._is_counting = True

    def note(self, uses: Mapping[str, ClientUse]) -> tuple[int, int]:
        """Notes the present use of all gateways that are there; returns their calls and tokens since the last time, as
        they count for rate and minute. Nothing is known of what a gateway did before it was seen first."""
        known = [(use, self._seen[replica]) for replica, use in uses.items() if replica in self._seen]
        calls = sum(use.calls - before.calls for use, before in known)
        tokens = sum(use.tokens - before.tokens for use, before in known)
        for replica in self._seen.keys() - uses.keys():
            self._gone[replica] = self._seen[replica]
        for replica in uses:
            self._gone.pop(replica, None)
        self._seen = dict(uses)
        is_counted, self._is_counting = self._is_counting, True
        return (calls, tokens) if is_counted else (0, 0)

    def pause(self) -> None:
        """Does not count what is used from now until the next `note`: each gateway has used its own part."""
        self._is_counting = False

    def day_gone(self, day: int) -> int:
        """Returns the tokens that gateways which have left used on this day. A gateway that was restarted may have
        restored what it had used before; that counts once."""
        restored = sum(use.day_restored for use in self._seen.values() if use.day == day)
        own = sum(use.day_tokens for use in self._gone.values() if use.day == day) - restored
        return max(0, own, *(use.day_gone for use in self._seen.values() if use.day == day))

    def day_tokens(self, day: int) -> int:
        """Returns the tokens that all other gateways used on this day."""
        return sum(use.day_tokens for use in self._seen.values() if use.day == day) + self.day_gone(day)
