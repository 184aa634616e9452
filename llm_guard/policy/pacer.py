"""How fast calls may follow one another, so that a provider has no reason to answer 429.

Owns the estimate of a provider's rate, from its 429s and its headers, and when the next call may go. Does not own who
that call is (`policy.gate`), nor how the headers are written (`policy.rate_hints`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, log2
from typing import Literal

from llm_guard.policy.pace_evidence import Accepted, Background, Recent
from llm_guard.policy.rate_hints import RateHint, Window

BURST_S = 0.02
"""A call may go this much before its time: so many seconds' worth of calls at once, and a late timer loses none."""
LOWEST_RATE = 1 / 30
PROBE_RATE = 1.0
"""Calls a second while nothing is accepted."""

Cause = Literal["rate_limits", "headers"]
_Phase = Literal["steady", "quota", "stopped", "opening"]

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

# A stop: so many 429s in a row. Shorter rows come of a small quota, too.
_STOP_429S = 6
_STOPPED_LEAST = 0.25
_DOUBLE_S = 0.5
_MOST_RATE = 1e6
_LN2 = log(2)
# An answer takes a minute, a 429 does not: without one for so long a call counts as accepted.
_SURE_S = 5.0
# Looks whether a quota is still as small: after so many accepted calls, and after twice as many when it was in vain.
_FIRST_LOOK = 4
_MOST_LOOK = 256
_MOST_RISE = 1.2
_CUTS_IN_A_ROW = 3
_MOST_PAUSE_S = 15.0
# An opening goes too far, and takes so long to settle: its 429s are not by chance.
_SETTLE_S = 60.0
# More calls than that were accepted in a look: it is no small quota.
_NOT_SMALL = 16

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
    next_at: float
    """From when on the next call may go; an instant in the past: now."""
    cause: Cause | None
    """What the rate was learned from; None: there is no rate."""
    since: float | None
    """When calls began to be paced for that cause; None: there is no rate."""
    is_probing: bool
    """Nothing is accepted: single calls look whether that has changed."""


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

    A rate below one a second has phases of its own, for it shuts nearly all calls out:

    - `stopped`: as good as nothing is accepted. One call a second looks; a few less in the first minute, if fewer were
      accepted in the minute before. An answer that is no 429 begins the opening.
    - `opening`: slow start. While calls wait the rate doubles every half a second, to the next cut.
    - `quota`: what was accepted in the last minute, and only as long as something is: else it is a stop. Calls are
      accepted at that rate, so now and then an opening looks for more; the intervals double.

    What is accepted is counted when calls go, and taken back when they come back with a 429: their good answers
    may take a minute.
    """

    __slots__ = (
        "_accepted", "_accepted_before", "_background", "_bound_until", "_ceiling", "_cut_at", "_early_until",
        "_grown_s", "_hint_rate", "_hint_since", "_hint_until", "_is_unconfirmed", "_look_after",
        "_looked_at_rate", "_next_at", "_opened_at", "_phase", "_phase_at", "_probe_at", "_rate", "_recent",
        "_row", "_row_at", "_seen", "_since", "_streak", "_top",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self._next_at = -inf
        self._rate: float | None = None
        self._since = now
        self._hint_since = now
        self._accepted = Accepted()
        self._row = 0
        """429s since an accepted call."""
        self._row_at = -inf
        self._phase: _Phase = "steady"
        self._phase_at = now
        self._probe_at = inf
        self._opened_at = -inf
        self._ceiling = _MOST_RATE
        self._is_unconfirmed = False
        self._look_after = _FIRST_LOOK
        self._streak = 0
        self._accepted_before = 0
        self._looked_at_rate: float | None = None
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
        if self._rate is None and self._hint_rate is None:
            return -inf
        self._forget(now)
        if now - self._probe_at >= _SURE_S:
            self._open(now, PROBE_RATE)
        elif self._phase == "quota" and self._rate is not None and self._is_confirmed(self._rate):
            self._look(self._rate, now)
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
        if self._phase == "stopped":
            self._probe_at = min(self._probe_at, now)
        rate = self._lower()
        if rate is not None:
            self._next_at = max(self._next_at, now) + 1 / rate

    def put_back(self, entered_at: float, now: float) -> None:
        """The call that `take` let go at `entered_at` did not go after all."""
        self._recent.uncount(entered_at)
        if self._cut_at <= entered_at < self._early_until:
            self._background.note_call(-1)
        self._probe_at = inf
        rate = self._lower()
        if rate is not None:
            self._next_at = max(now, self._next_at - 1 / rate)

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """The call that went at `entered_at` came back with a 429."""
        recent = self._recent
        recent.note_limited(entered_at, now)
        if self._cut_at <= entered_at < self._early_until:
            self._background.note_limited()
        self._row_at = entered_at if not self._row else min(self._row_at, entered_at)
        self._row += 1
        if self._phase == "stopped":
            self._probe_at = inf
            return
        if self._phase == "quota" and entered_at >= self._phase_at:
            self._back_off(now)
            return
        if self._looked_at_rate is not None and entered_at >= self._phase_at and self._end_look(now):
            return
        if entered_at - self._cut_at < _CUT_AGAIN_S:
            return
        background = self._background.share(now)
        if self._rate is None:
            if recent.has_lasted(_PATIENCE_S, now) and recent.is_more_than(max(background, _CURED_SHARE)):
                self._background.begin()
                self._cut(recent.accepted_rate_at_most(now, _MEASURED_S), background, now)
        elif recent.is_telling() and recent.is_more_than(background):
            self._end_epoch(self._rate, entered_at, now)

    def note_accepted(self, entered_at: float, now: float) -> None:
        """The call that went at `entered_at` came back with anything but a 429."""
        self._accepted.note(now)
        if entered_at >= self._row_at:
            self._row = 0
        if self._rate is None or entered_at < self._phase_at:
            return
        self._streak += 1
        if self._phase == "stopped" or (self._phase == "steady" and self._is_unconfirmed):
            self._open(now, self._rate)
        elif self._phase == "quota" and self._streak >= self._look_after:
            self._look(self._rate, now)
        elif self._looked_at_rate is not None and self._rate < PROBE_RATE:
            self._rate *= 2
            self._next_at = min(self._next_at, now + 1 / self._rate)

    def open_slowly(self, now: float, ceiling: float) -> None:
        """Calls have waited for something else, and would all go at once: slow start up to `ceiling` calls a second,
        and the usual growth from there on. Does nothing if there is a rate."""
        if self._rate is None:
            self._since = now
            self._open(now, PROBE_RATE)
            self._ceiling = min(_MOST_RATE, max(PROBE_RATE, ceiling))

    def note_hint(self, hint: RateHint, in_flight: int, now: float) -> None:
        """What an answer's headers say. Only a window that is nearly used up binds: less than 5 % of it is left, or
        fewer calls than are in flight. What is left of it may then go within ten seconds, beside what flows in."""
        rates = [self._hinted_rate(window, in_flight, now) for window in hint.windows]
        lowest = min((rate for rate in rates if rate is not None), default=None)
        self._hint_until = now + _HINT_S
        self._set_hint_rate(lowest, now)

    def release(self, now: float) -> None:
        """Forgets the rate, the recent 429s, and what headers say."""
        self._forget_learned()
        self._hint_rate = None
        self._recent.restart(now)

    def snapshot(self, now: float) -> PacerSnapshot:
        self._forget(now)
        rate = self._lower()
        if rate is None:
            return PacerSnapshot(None, -inf, None, None, is_probing=False)
        is_learned = rate is self._rate
        return PacerSnapshot(
            rate,
            self._next_at - BURST_S,
            "rate_limits" if is_learned else "headers",
            self._since if is_learned else self._hint_since,
            is_probing=is_learned and self._phase == "stopped",
        )

    def wait_s(self, ahead: int, now: float) -> float:
        """About how long until so many calls have gone, and the next may. An opening is expected to go on."""
        self._forget(now)
        rate = self._lower()
        if rate is None:
            return 0.0
        begin_s = max(0.0, self._next_at - BURST_S - now)
        if rate is self._rate and self._phase == "opening":
            return begin_s + _DOUBLE_S * log2(1 + ahead * _LN2 / (rate * _DOUBLE_S))
        return begin_s + ahead / rate

    def _lower(self) -> float | None:
        if self._rate is None or self._hint_rate is None:
            return self._hint_rate if self._rate is None else self._rate
        return min(self._rate, self._hint_rate)

    def _forget(self, now: float) -> None:
        if self._rate is not None and now - max(self._bound_until, self._cut_at) >= _FORGET_S:
            self._forget_learned()
        if self._phase == "quota" and not self._accepted.rate(now):
            self._stop(now)
        if self._hint_rate is not None and now >= self._hint_until:
            self._set_hint_rate(None, now)

    def _forget_learned(self) -> None:
        self._rate = self._looked_at_rate = None
        self._early_until = -inf
        self._begin("steady", -inf)
        self._look_after = _FIRST_LOOK

    # Phases

    def _begin(self, phase: _Phase, now: float) -> None:
        self._phase, self._phase_at = phase, now
        self._accepted_before = self._recent.accepted
        self._is_unconfirmed = False
        self._probe_at = inf
        self._streak = 0

    def _stop(self, now: float) -> None:
        self._looked_at_rate = self._rate
        self._rate = PROBE_RATE
        self._next_at = min(self._next_at, now + 1 / PROBE_RATE)
        self._bound_until = now
        self._begin("stopped", now)

    def _open(self, now: float, rate: float) -> None:
        """Slow start from that rate on."""
        self._rate = rate
        self._next_at = min(self._next_at, now + 1 / rate)
        self._cut_at = self._bound_until = now
        self._early_until = now
        self._background.begin()
        self._recent.restart(now)
        self._begin("opening", now)
        self._ceiling = _MOST_RATE
        self._opened_at = now

    def _back_off(self, now: float) -> None:
        """A small quota is spent: a little slower from now on, and a pause that doubles as long as it is."""
        rate = self._rate or LOWEST_RATE
        if self._is_unconfirmed:
            return
        if self._row == 1:
            self._top = rate
            self._grown_s = 0.0
        if self._row <= _CUTS_IN_A_ROW:
            self._rate = rate = max(LOWEST_RATE, rate * _CUT)
        self._next_at = max(self._next_at, now + min(_MOST_PAUSE_S, 2 ** min(9, self._row - 1) / rate))

    def _probed_rate(self, rate: float) -> float:
        return PROBE_RATE if self._is_unconfirmed else min(PROBE_RATE, 2 * rate)

    def _went(self) -> int:
        """Calls of this phase that met no 429 so far."""
        return self._recent.accepted - self._accepted_before

    def _is_confirmed(self, rate: float) -> bool:
        """Whether enough calls of this phase were accepted. Answers may take minutes: a call counts that went `_SURE_S`
        ago and has not come back with a 429."""
        return self._went() - rate * _SURE_S >= self._look_after

    def _look(self, rate: float, now: float) -> None:
        """Looks whether a small quota has grown."""
        self._looked_at_rate = rate
        self._open(now, self._probed_rate(rate))

    def _end_look(self, now: float) -> bool:
        """A look whether a small quota has grown met a 429. Whether it is small still."""
        before, self._looked_at_rate = self._looked_at_rate, None
        if before is None or self._went() >= _NOT_SMALL:
            return False
        rate = max(before, min((self._rate or 0.0) / 2, self._accepted.rate(now) * _CUT, _MOST_RISE * before))
        self._look_after = min(4 * self._look_after, _MOST_LOOK)
        self._rate = self._top = rate
        self._grown_s = 0.0
        self._next_at = now + 1 / rate
        self._cut_at = self._bound_until = now
        self._recent.restart(now)
        self._begin("quota", now)
        return True

    def _slow_down(self, rate: float, now: float) -> float:
        """The phase for that rate, and the rate that it has there."""
        quota = self._accepted.rate(now)
        is_stop = self._row >= _STOP_429S or not quota
        if rate >= PROBE_RATE or (quota >= 1 and not is_stop):
            self._begin("steady", now)
            self._is_unconfirmed = is_stop and self._recent.is_stopped()
            return max(rate, PROBE_RATE)
        if quota >= 1 or not quota:
            self._begin("stopped", now)
            return PROBE_RATE
        is_first = is_stop and self._row_at <= self._since
        self._begin("quota", now)
        if is_first:
            self._look_after = 1
            self._is_unconfirmed = True
            return max(_STOPPED_LEAST, quota * _CUT)
        return max(LOWEST_RATE, quota * _CUT if is_stop else max(rate, quota * _CUT))

    # Growth

    def _grow(self, until: float, now: float) -> None:
        """A call waits for the rate from now until then."""
        rate = self._rate or 0.0
        if self._phase in ("opening", "stopped"):
            self._grow_fast(rate, until, now)
            return
        unhurried = min(1.0, rate / (_UNHURRIED if rate >= PROBE_RATE else 3 * _UNHURRIED))
        self._grown_s += max(0.0, until - max(now, self._bound_until)) * unhurried
        self._bound_until = max(self._bound_until, until)
        self._rate = max(rate, self._top * (1 + _GROWTH * (self._grown_s - _REGAIN_S) ** 3))

    def _grow_fast(self, rate: float, until: float, now: float) -> None:
        waited_s = max(0.0, until - max(now, self._bound_until))
        self._bound_until = max(self._bound_until, until)
        if self._phase == "opening" and rate >= PROBE_RATE:
            self._rate = min(self._ceiling, rate * 2 ** (waited_s / _DOUBLE_S))
            if self._rate >= self._ceiling:
                self._top = self._rate
                self._grown_s = _REGAIN_S
                self._begin("steady", now)

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
            self._since = now
        self._rate = self._slow_down(self._top * _CUT, now)
        self._top = self._rate / _CUT
        self._grown_s = 0.0
        self._cut_at = self._bound_until = now
        self._early_until = inf if now - self._opened_at >= _SETTLE_S else -inf
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
        if self._hint_rate is None:
            self._hint_since = now
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
