"""How fast calls may follow one another, so that a provider has no reason to answer 429.

Owns the estimate of a provider's rate, from its 429s and its headers, and when the next call may go. Does not own who
that call is (`policy.gate`), nor how the headers are written (`policy.rate_hints`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.policy.pace_evidence import Background, Recent
from llm_guard.policy.rate_hints import RateHint, Window

BURST_S = 0.02
"""A call may go this much before its time: so many seconds' worth of calls at once, and a late timer loses none."""
LOWEST_RATE = 1 / 60

_CUT = 0.9
_CUT_AGAIN_S = 0.5
_FORGET_S = 60.0
# The rate is back at what it was before a cut after two seconds of waiting calls, or twenty calls at low rates.
_REGAIN_S = 2.0
_GROWTH = (1 - _CUT) / _REGAIN_S**3
_UNHURRIED = 10.0
_EARLY_S = 1.0
_MEASURED_S = 1.0
# Below this share waiting costs more than it saves: of four attempts one in a hundred calls fails.
_CURED_SHARE = 0.3
# As long as the first 429s tell little of what is accepted, retries carry them.
_PATIENCE_S = 0.5

_NEARLY = 0.05
_SPEND_S = 10.0
_HINT_S = 30.0
_MOST_WINDOWS = 16
_PRICED_CALLS = 4
_PRICE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class PacerSnapshot:
    rate: float | None
    """Calls a second, the lower of what 429s and headers say; None: unlimited as far as is known."""
    held_until: float | None
    """Nothing goes before this instant; None: not held."""
    next_at: float
    """From when on the next call may go; an instant in the past: now."""
    rate_cause: Literal["rate_limits", "headers"] | None
    """What set the rate; None: there is none."""
    rate_since: float | None
    """When the rate was set first."""
    held_since: float | None


class Pacer:
    """A bucket in the form of one instant, the earliest for the next call (GCRA: ITU-T I.371), whose rate is learned.

    A 429 may have nothing to do with our rate (a shared quota, a provider that sheds by chance), and what comes by
    chance is cured by retries. So nothing is paced until 429s are clearly more than 30 % of the recent calls; and
    what comes as often right after a cut as before is `Background`: when three cuts were in vain the pace is given
    up, and from then on only what is clearly more than the background is a sign of too high a rate.

    From such signs, as CUBIC does it (RFC 9438; botocore's adaptive mode): one cuts the rate to 0.9 of what the
    provider accepted of late, at most by half and at most once for all that entered until half a second later;
    while calls wait for it, the rate comes back within `_REGAIN_S`, stays there for as long and then grows ever
    faster. Without calls that wait it does not move, and after a minute without waiting or 429 it is forgotten.

    What is accepted is counted when calls go, and taken back when they come back with a 429: their good answers
    may take a minute.
    """

    __slots__ = (
        "_background", "_bound_until", "_cut_at", "_early_until", "_grown_s", "_held_since", "_held_until",
        "_hint_rate", "_hint_until", "_next_at", "_rate", "_rate_since", "_recent", "_seen", "_top",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self._held_until = self._held_since = self._rate_since = -inf
        self._next_at = -inf
        self._rate: float | None = None
        self._top = 0.0
        self._grown_s = 0.0
        self._cut_at = -inf
        self._bound_until = -inf
        self._early_until = -inf
        self._recent = Recent(now)
        self._background = Background()
        self._hint_rate: float | None = None
        self._hint_until = -inf
        self._seen: dict[str, _Seen] = {}

    def opens_at(self, now: float) -> float:
        """From when on the next call may go; an instant in the past: now. To ask is to want: a rate that is asked
        for more than it gives grows."""
        if self._held_until > now:
            return self._held_until
        if self._rate is None and self._hint_rate is None:
            return -inf
        self._forget(now)
        rate = self._lower()
        at = -inf if rate is None else self._next_at - BURST_S
        if at > now and rate is self._rate:
            self._grow(at, now)
        return at

    def take(self, now: float) -> None:
        """A call goes."""
        recent = self._recent
        if now >= recent.due_at:
            recent.turn(now)
        recent.calls += 1
        if self._rate is None and self._hint_rate is None:
            return
        if now < self._early_until:
            self._take_early(now)
        rate = self._lower()
        if rate is not None:
            self._next_at = max(self._next_at, now) + 1 / rate

    def put_back(self, entered_at: float, now: float) -> None:
        """The call that `take` let go at `entered_at` did not go after all."""
        self._recent.uncount(entered_at)
        if self._cut_at <= entered_at < self._early_until:
            self._background.note_call(-1)
        rate = self._lower()
        if rate is not None:
            self._next_at = max(now, self._next_at - 1 / rate)

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """The call that went at `entered_at` came back with a 429."""
        recent = self._recent
        recent.note_limited(entered_at, now)
        if self._cut_at <= entered_at < self._early_until:
            self._background.note_limited()
        if entered_at - self._cut_at < _CUT_AGAIN_S:
            return
        background = self._background.share(now)
        if self._rate is None:
            if recent.has_lasted(_PATIENCE_S, now) and recent.is_more_than(max(background, _CURED_SHARE)):
                self._background.begin()
                self._cut(recent.accepted_rate_at_most(now, _MEASURED_S), background, now)
        elif recent.is_telling() and recent.is_more_than(background):
            self._end_epoch(self._rate, entered_at, now)

    def note_hint(self, hint: RateHint, in_flight: int, now: float) -> None:
        """What an answer's headers say. Only a window that is nearly used up binds: less than 5 % of it is left, or
        fewer calls than are in flight. What is left of it may then go within ten seconds, beside what flows in."""
        rates = [self._hinted_rate(window, in_flight, now) for window in hint.windows]
        lowest = min((rate for rate in rates if rate is not None), default=None)
        self._hint_until = now + _HINT_S
        self._set_hint_rate(lowest, now)

    def hold(self, until: float, now: float = -inf) -> None:
        """Nothing goes before `until`; a shorter hold does not cut a longer one short."""
        self._held_since = max(self._held_since, now) if self._held_until <= now else self._held_since
        self._held_until = max(self._held_until, until)

    def release(self) -> None:
        """Forgets what is known of the rate, but not a hold."""
        self._forget_learned()
        self._hint_rate = None

    def snapshot(self, now: float) -> PacerSnapshot:
        self._forget(now)
        rate, held_until = self._lower(), self._held_until if self._held_until > now else None
        next_at = -inf if rate is None else self._next_at - BURST_S
        cause: Literal["rate_limits", "headers"] | None = None
        if rate is not None:
            cause = "rate_limits" if rate is self._rate else "headers"
        return PacerSnapshot(
            rate,
            held_until,
            next_at if held_until is None else held_until,
            cause,
            None if cause is None else self._rate_since,
            None if held_until is None or self._held_since == -inf else self._held_since,
        )

    def _lower(self) -> float | None:
        if self._rate is None or self._hint_rate is None:
            return self._hint_rate if self._rate is None else self._rate
        return min(self._rate, self._hint_rate)

    def _forget(self, now: float) -> None:
        if self._rate is not None and now - max(self._bound_until, self._cut_at) >= _FORGET_S:
            self._forget_learned()
        if self._hint_rate is not None and now >= self._hint_until:
            self._set_hint_rate(None, now)

    def _forget_learned(self) -> None:
        self._rate = None
        self._early_until = -inf

    # Growth

    def _grow(self, until: float, now: float) -> None:
        """A call waits for the rate from now until then."""
        rate = self._rate or 0.0
        unhurried = min(1.0, rate / _UNHURRIED)
        self._grown_s += max(0.0, until - max(now, self._bound_until)) * unhurried
        self._bound_until = max(self._bound_until, until)
        self._rate = max(rate, self._top * (1 + _GROWTH * (self._grown_s - _REGAIN_S) ** 3))

    def _take_early(self, now: float) -> None:
        if self._grown_s < _EARLY_S:
            self._background.note_call()
        else:
            self._early_until = now

    # Cuts

    def _end_epoch(self, rate: float, entered_at: float, now: float) -> None:
        """The call that entered then came back with a 429 too many."""
        answered = (entered_at - self._cut_at) / (now - self._cut_at) if self._early_until == inf else 1.0
        if self._background.is_in_vain(answered, now):
            self._give_up(now)
            return
        accepted = self._recent.accepted_rate(now, _CUT_AGAIN_S)
        self._cut(min(rate, max(rate / 2, accepted)), self._background.share(now), now)

    def _give_up(self, now: float) -> None:
        self._forget_learned()
        self._cut_at = now
        self._recent.restart(now)

    def _cut(self, accepted: float, background: float, now: float) -> None:
        # Of what goes the background is not accepted. The cut is deeper then: it must lead below the limit, or what
        # comes from the limit is taken for background for ever.
        self._top = accepted * _CUT / (1 - background) if background else accepted
        if self._rate is None:
            self._rate_since = now
        self._rate = max(LOWEST_RATE, self._top * _CUT)
        self._grown_s = 0.0
        self._cut_at = self._bound_until = now
        self._early_until = inf
        self._next_at = now + 1 / self._rate
        self._recent.restart(now)

    # Headers

    def _hinted_rate(self, window: Window, in_flight: int, now: float) -> float | None:
        price = self._price(window, now) if window.is_tokens else 1.0
        if price is None or window.refill_per_s == 0:
            return None
        calls_left = window.remaining / price
        if window.remaining > window.limit * _NEARLY and calls_left >= in_flight:
            return None
        return max(LOWEST_RATE, window.refill_per_s / price + calls_left / _SPEND_S)

    def _price(self, window: Window, now: float) -> float | None:
        """Tokens that a call takes from this window on average; None: not known yet."""
        seen = self._seen.get(window.name)
        if seen is None:
            if len(self._seen) >= _MOST_WINDOWS:
                self._seen.clear()
            self._seen[window.name] = _Seen(now, self._recent.accepted, window.remaining)
            return None
        calls = self._recent.accepted - seen.accepted
        if calls >= _PRICED_CALLS:
            was_left = min(window.limit, seen.remaining + window.refill_per_s * (now - seen.at))
            seen.learn(max(1.0, (was_left - window.remaining) / calls))
            seen.at, seen.accepted, seen.remaining = now, self._recent.accepted, window.remaining
        return seen.price

    def _set_hint_rate(self, hinted: float | None, now: float) -> None:
        if self._hint_rate is None and self._rate is None:
            self._rate_since = now
        self._hint_rate = hinted
        rate = self._lower()
        if rate is not None:
            # The next call waits no longer than the new rate has it wait.
            self._next_at = min(self._next_at, now + 1 / rate)


@dataclass(slots=True, eq=False)
class _Seen:
    """A window of tokens as it was a few calls ago."""

    at: float
    accepted: int
    remaining: float
    price: float | None = None

    def learn(self, price: float) -> None:
        self.price = price if self.price is None else self.price + _PRICE_SHARE * (price - self.price)
