"""Tokens that one client key uses: in a minute, and in a day of UTC, of limits that gateways may have together.

Only the sum of all tokens is counted for each call, in `resilience.client_keys.limits`.
"""

from __future__ import annotations

DAY_S = 86_400.0
_PER_MINUTE_S = 60.0


class MinuteTokens:
    """Tokens that flow back evenly within a minute. `now` is monotonic, and never goes back."""

    __slots__ = ("_at", "_used")

    def __init__(self, now: float) -> None:
        self._used = 0.0
        """Tokens used, less those that have flowed back by `_at`."""
        self._at = now

    def used(self, per_minute: float, now: float) -> float:
        """Returns the tokens used, less those that have flowed back by now."""
        used = self._used - (now - self._at) * per_minute / _PER_MINUTE_S
        return used if used > 0 else 0.0

    def charge(self, tokens: int, per_minute: float, now: float) -> None:
        """Notes that tokens were used; below 0: that too many were noted."""
        used = self.used(per_minute, now) + tokens
        self._used, self._at = used if used > 0 else 0.0, now

    def wait_s(self, tokens: int, per_minute: float, now: float) -> float:
        """Returns the seconds until a call of so many tokens may enter; 0 or less: it may. A call larger than a
        minute's tokens enters when nothing is used, and the calls after it wait for longer."""
        return (self.used(per_minute, now) + min(tokens, per_minute) - per_minute) * _PER_MINUTE_S / per_minute

    def reset_s(self, per_minute: float, now: float) -> float:
        """Returns the seconds until all tokens have flowed back."""
        return self.used(per_minute, now) * _PER_MINUTE_S / per_minute

    def clear(self) -> None:
        """Forgets what was used."""
        self._used = 0.0


class DayTokens:
    """The current day. `total` is the sum of all tokens used at this gateway since its start, `wall` in seconds since
    the epoch."""

    __slots__ = ("_before", "_from", "day", "elsewhere", "restored")

    def __init__(self, wall: float) -> None:
        self.day = int(wall // DAY_S)
        self._from = 0
        """The total at the beginning of the day, less what was restored."""
        self.restored = 0
        """Tokens of this day used by earlier processes."""
        self.elsewhere = 0
        """Tokens of this day used at other gateways."""
        self._before = 0
        """Tokens of this day that were used before it was no longer known what others use."""

    def used(self, total: int) -> int:
        """Returns the tokens of this day, restored ones included."""
        return total - self._from

    def begin(self, wall: float, total: int) -> bool:
        """Begins the day of `wall`, if this one is over; returns whether it was. A clock that is set back over midnight
        begins none."""
        day = wall // DAY_S
        if day == self.day or day == self.day - 1:
            return False
        self.day = int(day)
        self.clear(total)
        return True

    def clear(self, total: int) -> None:
        """Forgets what was used in this day."""
        self._from = total
        self.restored = self.elsewhere = self._before = 0

    def leave_out(self, tokens: int) -> None:
        """Does not count tokens that are in the total from now on: they are another day's."""
        self._from += tokens

    def restore(self, day: int, tokens: int, total: int) -> None:
        """Adds the sum of an earlier process, if it is of this day."""
        if day == self.day + 1:  # it has not begun by this clock
            self.day, self._from, self.restored = day, total, 0
        if day == self.day:
            self._from -= max(0, tokens)
            self.restored += max(0, tokens)

    def divide(self, total: int) -> None:
        """Divides only what is left now among the gateways."""
        self._before = self.used(total)

    def left(self, per_day: int, gateways: int, total: int) -> int:
        """Returns the tokens that this gateway may still use; below 0 if more were used. `gateways` divide the limit
        among them; 1: each knows what the others have used."""
        used, before = total - self._from, self._before
        if gateways == 1:
            return per_day - self.elsewhere - used
        return max(0, per_day - self.elsewhere - before) // gateways - (used - before)


def left_of_day_s(wall: float) -> float:
    """Returns the seconds until the next midnight."""
    return DAY_S - wall % DAY_S
