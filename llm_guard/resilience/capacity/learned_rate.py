"""Learned rate: the rate that a provider accepts, learned from its 429s.

Contains the evidence (429s in a row, accepted calls of the last minute), when it means that the rate is too high, the
cuts, and the phases of a rate that is low or unknown. `resilience.capacity.throttle_statistics` has the statistics of
429s, `resilience.capacity.rate_growth` decides how the rate grows, `resilience.capacity.quota_probes` when a small
quota is probed.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Literal

from llm_guard.resilience.capacity.known_quota import KnownQuota
from llm_guard.resilience.capacity.partial_storm import PartialStorm
from llm_guard.resilience.capacity.quota_evidence import QuotaEvidence
from llm_guard.resilience.capacity.quota_probes import ACCEPTED_AFTER_S, QuotaProbes, spent_pause_s, spent_rate
from llm_guard.resilience.capacity.rate_growth import CUT, PROBE_RATE, RateGrowth, slow_start_s
from llm_guard.resilience.capacity.throttle_statistics import Background, ThrottleWindow
from llm_guard.resilience.throttling.gcra import LOWEST_RATE, Bucket

_TOGETHER_S = 1.0


class ResponseRows:
    """The two latest rows. A 429 is faster than other responses: of calls that entered together, those that are
    accepted come back last, and are no row."""

    __slots__ = ("_latest_limited", "accepted", "limited", "limited_since")

    def __init__(self) -> None:
        self.accepted = 0
        """Accepted calls since the last 429, without those that entered together with a call that got one."""
        self.limited = 0
        """429s since the last accepted call."""
        self.limited_since = -inf
        """When the first call of that row entered."""
        self._latest_limited = -inf

    def note_rate_limited(self, entered_at: float) -> None:
        """Notes a 429 for the call that entered at `entered_at`."""
        self.accepted = 0
        self._latest_limited = max(self._latest_limited, entered_at)
        self.limited_since = min(self.limited_since, entered_at) if self.limited else entered_at
        self.limited += 1

    def note_accepted(self, entered_at: float) -> None:
        """Notes another response."""
        if not 0.0 <= self._latest_limited - entered_at <= _TOGETHER_S:
            self.accepted += 1
        if entered_at >= self.limited_since:
            self.limited = 0


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


_MINUTE_S = 60.0
_WITNESSES = 60
_LEAST_MEASURED_S = 10.0


class Accepted:
    """The latest responses that were no 429: up to 60, which make one a second over a minute."""

    __slots__ = ("_at", "_limited_at", "_limited_since")

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=_WITNESSES)
        self._limited_at = self._limited_since = -inf
        """The latest 429, and the first one after a minute without any."""

    def note(self, now: float) -> None:
        """Notes any other response than a 429."""
        self._at.append(now)

    def note_rate(self, rate: float, now: float) -> None:
        """Notes as many as came in the last minute at that rate."""
        for _ in range(min(_WITNESSES, int(rate * _MINUTE_S))):
            self.note(now)

    def note_rate_limited(self, now: float) -> None:
        """Notes a 429."""
        if now - self._limited_at >= _MINUTE_S:
            self._limited_since = now
        self._limited_at = now

    def rate(self, now: float) -> float:
        """Returns the rate over the last minute, in responses a second; 1: one or more."""
        at = self._at
        while at and at[0] <= now - _MINUTE_S:
            at.popleft()
        return len(at) / _MINUTE_S

    def limited_rate(self, now: float) -> float:
        """Like `rate`, or over the time since the first 429 if that is more: calls may not have come for a minute."""
        since_s = max(_LEAST_MEASURED_S, now - self._limited_since)
        if since_s >= _MINUTE_S:
            return self.rate(now)
        return max(self.rate(now), sum(at > self._limited_since for at in self._at) / since_s)


_Phase = Literal["steady", "quota", "stopped", "opening"]
_FORGET_S = 60.0
# A stop is this many 429s in a row. A small quota produces shorter rows, too.
_STOP_429S = 6
_LEAST_UNCONFIRMED_RATE = 0.25


class LearnedRate:
    """A state machine that follows the rate a provider accepts.

    There is no rate until 429s are evidence of one (`CutEpoch`). A cut then sets it to 0.9 of what was accepted
    recently, at most halves it, and covers all calls that enter within the next half a second. `RateGrowth` raises it
    again while calls wait. The rate is given up after three cuts in vain, and forgotten after a minute without use.

    A rate below one a second shuts nearly all calls out, so it has phases of its own:
    - `stopped`: almost nothing is accepted. One probe a second, somewhat less in the first minute if fewer calls were
      accepted in the minute before. The first response that is not a 429 begins the opening.
    - `opening`: slow start. The rate doubles every half a second while calls wait, until the next cut.
    - `quota`: the rate accepted in the last minute, kept only while something is accepted; otherwise it is a stop.
      While all calls are accepted at that rate, openings probe whether the quota has grown. What an opening used too
      early is paid back by a pause. A quota is known for longer than its rate (`KnownQuota`): after the rate was
      forgotten, the first 429 that fits it restores the rate. A quota is given up if calls are refused that it would
      accept (`QuotaEvidence`). Then the rate stays at one a second or more for ten minutes (`PartialStorm`).

    Calls count as accepted from when they enter until they get a 429: other responses may take a minute.
    """

    __slots__ = (
        "_accepted", "_accepted_at_begin", "_answers", "_bucket", "_epoch", "_evidence", "_growth", "_is_unconfirmed",
        "_phase", "_phase_at", "_probe_at", "_quota_probes", "_rows", "_storm", "known_quota", "rate", "since",
    )  # fmt: skip

    def __init__(self, bucket: Bucket, now: float, late_s: float = 0.0) -> None:
        self.rate: float | None = None
        """Calls a second; None: no limit."""
        self.since = now
        """When the rate was first limited."""
        self._bucket = bucket
        self._epoch = CutEpoch(now, late_s)
        self._accepted = Accepted()
        self._growth = RateGrowth(late_s)
        self._quota_probes = QuotaProbes()
        self._evidence = QuotaEvidence()
        self._storm = PartialStorm()
        self.known_quota = KnownQuota()
        self._rows = ResponseRows()
        self._phase: _Phase = "steady"
        self._phase_at = now
        self._accepted_at_begin = 0
        """Accepted calls before this phase."""
        self._answers = 0
        """Calls of this phase that got another response than a 429."""
        self._is_unconfirmed = False
        """True if the rate was set by a stop, and no response has confirmed it yet."""
        self._probe_at = inf
        """When the first call without a 429 went, while nothing else shows that calls are accepted."""

    @property
    def is_stopped(self) -> bool:
        return self._phase == "stopped"

    @property
    def accepted(self) -> int:
        """All calls so far that got no 429."""
        return self._epoch.recent.accepted

    def drain_s(self, calls: int, rate: float) -> float:
        """Returns the estimated seconds until so many calls have gone, at the present `rate`. An opening is expected to
        go on."""
        return slow_start_s(calls, rate) if self._phase == "opening" else calls / rate

    def expire(self, now: float) -> None:
        """Forgets a rate that was not needed for a minute, and ends a quota that accepts nothing any more."""
        if self.rate is not None and now - max(self._growth.counted_until, self._epoch.began_at) >= _FORGET_S:
            self.forget()
        if self._phase == "quota" and not self._accepted.rate(now):
            self._stop(now)

    def begin_due_opening(self, now: float) -> None:
        """Ends a stop if its probe got no 429 in time, and probes a quota that enough calls have confirmed."""
        is_accepted = now - self._probe_at >= ACCEPTED_AFTER_S
        if self._phase == "stopped" and is_accepted:
            self._open(now, PROBE_RATE)
        if self._phase == "quota" and (rate := self.rate) is not None:
            accepted = self.accepted - self._accepted_at_begin
            if is_accepted or self._quota_probes.is_due_without_answers(accepted, rate):
                self._probe_quota(rate, now)

    def grow(self, until: float, now: float) -> None:
        """Notes that a call waits for the rate from `now` until `until`."""
        rate = self.rate or 0.0
        waited_s = self._growth.count(until, now)
        if self._phase == "stopped":
            return
        if self._phase != "opening":
            self.rate = self._growth.recover(rate, waited_s, can_double=self._phase == "steady")
            if self._phase == "quota" and self.rate >= PROBE_RATE:
                self._begin("steady", now)
        elif rate >= PROBE_RATE:
            self.rate = self._growth.slow_start(rate, waited_s)
            if self.rate >= self._growth.ceiling:
                self._growth.end_slow_start(self.rate)
                self._begin("steady", now)

    def take(self, now: float) -> None:
        """Notes that a call goes."""
        self._epoch.take(now)
        if self.rate is None:
            return
        self._epoch.take_early(now, is_early=self._growth.is_early)
        if self._phase == "stopped" or self._is_unconfirmed:
            self._probe_at = min(self._probe_at, now)

    def put_back(self, entered_at: float) -> None:
        """Notes that the call that `take` let go at `entered_at` did not go after all."""
        self._epoch.put_back(entered_at)
        self._probe_at = inf

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """Notes a 429 for the call that went at `entered_at`."""
        self._epoch.note_rate_limited(entered_at, self._rows.accepted, now)
        self._accepted.note_rate_limited(now)
        if not self._rows.limited:
            accepted = self._accepted.rate(now)
            self.known_quota.begin_row(accepted)
            self._evidence.note_accepted_rate(accepted, now)
        self._storm.note_rate_limited(self._rows.accepted)
        self._growth.note_rate_limited(is_due_to_rate=not self._storm.is_on(now))
        self._rows.note_rate_limited(entered_at)
        is_of_phase = entered_at >= self._phase_at
        self._probe_at = inf
        if self._phase == "stopped":
            return
        if self._phase == "quota" and is_of_phase:
            self._note_rate_limited_of_quota(self.rate or LOWEST_RATE, now)
        elif self._quota_probes.is_running and is_of_phase and self._return_to_quota(now):
            return
        elif not self._epoch.covers(entered_at):
            self._cut_if_too_fast(entered_at, now)

    def note_accepted(self, entered_at: float, now: float) -> bool:
        """Notes any other response than a 429 to the call that went at `entered_at`. Returns whether this begins a slow
        start."""
        self._accepted.note(now)
        self._rows.note_accepted(entered_at)
        if self.rate is None or entered_at < self._phase_at:
            return False
        self._answers += 1
        is_well = self._phase == "steady" and (self._storm.ends(self._rows.accepted, now) or self._is_unconfirmed)
        if is_well or self._phase == "stopped":
            self._open(now, self.rate)
            return True
        if self._phase == "quota":
            return self._note_accepted_of_quota(self.rate, now)
        if self._quota_probes.is_running and self.rate < PROBE_RATE:
            self.rate *= 2
            self._bucket.shorten(self.rate, now)
        return False

    def open_slowly(self, now: float, ceiling: float, calls: int) -> None:
        """Begins a slow start up to `ceiling` calls a second, at which so many go before the usual growth. Does nothing
        during a quota or a stop, or if a lower rate is already learned, unless it is in a slow start."""
        if self.rate is None:
            self.since = now
        if self.rate is None or (self._phase == "steady" and self.rate > max(PROBE_RATE, ceiling)):
            self._open(now, PROBE_RATE)
        if self._phase == "opening":
            self._growth.limit_slow_start(ceiling, calls)

    def begin_at(self, rate: float, now: float, *, is_stopped: bool, is_part: bool) -> None:
        """Continues with a rate that was learned elsewhere, in addition to the one that there is."""
        self.since = now if self.rate is None else self.since
        self.rate = max(LOWEST_RATE, rate + (self.rate or 0.0))
        self._accepted.note_rate(0.0 if is_stopped else self.rate, now)
        self._resume("steady" if self.rate >= PROBE_RATE else "quota", self.rate, 0.0, now)
        self._growth.begin_at(self.rate, now, is_part=is_part)
        if is_stopped:
            self._stop(now)

    def release(self, now: float) -> None:
        """Forgets the rate, what is known of a quota, and the recent 429s."""
        self.forget()
        self.known_quota.forget()
        self._evidence, self._storm = QuotaEvidence(), PartialStorm()
        self._epoch.recent.restart(now)

    def forget(self) -> None:
        self._growth.forget()
        self._quota_probes.reset()
        self._evidence.drop_doubt()
        self._epoch.end()
        self.rate = None
        self._begin("steady", -inf)

    def _begin(self, phase: _Phase, now: float) -> None:
        self._phase, self._phase_at = phase, now
        self._accepted_at_begin = self._epoch.recent.accepted
        self._is_unconfirmed = False
        self._probe_at = inf
        self._answers = 0

    def _stop(self, now: float) -> None:
        self._quota_probes.begin(self.rate or LOWEST_RATE, self.accepted, now, is_guess=self._is_unconfirmed)
        self.rate = PROBE_RATE
        self._bucket.shorten(PROBE_RATE, now)
        self._growth.counted_until = now
        self._begin("stopped", now)

    def _open(self, now: float, rate: float) -> None:
        """Begins a slow start from that rate."""
        self.rate = rate
        self._bucket.shorten(rate, now)
        self._growth.begin_slow_start(now)
        self._epoch.begin_opening(now)
        self._begin("opening", now)

    def _note_rate_limited_of_quota(self, rate: float, now: float) -> None:
        if now < self._quota_probes.paid_back_at:
            self._bucket.pause(self._quota_probes.confirm_guess())
        elif self._evidence.note_rate_limited(rate, self._rows.limited):
            self._give_up_quota(now)
        else:
            if self._answers and self._rows.limited == 1:
                self.known_quota.note(self._accepted.rate(now), now)
            self._quota_probes.note_rate_limited(self._answers)
            self._back_off(rate, now)

    def _back_off(self, rate: float, now: float) -> None:
        """Cuts the rate of a spent quota towards what was accepted, and pauses. A guessed rate is cut without a pause,
        as it may be a storm."""
        if self._is_unconfirmed:
            self._growth.recover_to(rate)
            self.rate = max(_LEAST_UNCONFIRMED_RATE, rate * CUT)
            return
        in_a_row = self._rows.limited
        accepted = spent_rate(rate, in_a_row, self._accepted.limited_rate(now))
        if accepted is not None:
            self._growth.recover_to(accepted)
            self.rate = rate = min(rate, max(LOWEST_RATE, max(accepted, self._evidence.least_quota()) * CUT))
        self._bucket.pause(now + spent_pause_s(rate, in_a_row))

    def _note_accepted_of_quota(self, rate: float, now: float) -> bool:
        """Returns whether a probe begins."""
        self._evidence.note_accepted()
        is_doubtful = self._evidence.is_doubtful
        if is_due := self._quota_probes.is_due(self._answers, self._rows.accepted, rate, now, is_doubtful=is_doubtful):
            self._probe_quota(rate, now)
        return is_due

    def _probe_quota(self, rate: float, now: float) -> None:
        """Begins an opening that shows whether the quota has grown."""
        self._quota_probes.begin(rate, self.accepted, now, is_guess=self._is_unconfirmed)
        self._open(now, PROBE_RATE if self._is_unconfirmed else min(PROBE_RATE, 2 * rate))

    def _return_to_quota(self, now: float) -> bool:
        """Ends the probe of a small quota after a 429. Returns whether the quota is still small."""
        accepted = self.accepted
        rate = self._quota_probes.end(accepted, self.rate or 0.0, self._accepted.rate(now), now)
        if rate is None:
            return False
        self.known_quota.note(self._accepted.rate(now), now)
        self._resume("quota", rate, self._quota_probes.begin_pause(accepted, rate, now), now)
        return True

    def _resume(self, phase: _Phase, rate: float, pause_s: float, now: float) -> None:
        """Continues at that rate, after a pause."""
        self.rate = rate
        self._growth.begin_recovery(rate, now)
        self._bucket.restart(rate, now)
        self._bucket.pause(now + pause_s)
        self._epoch.begin(now)
        self._begin(phase, now)

    def _give_up_quota(self, now: float) -> None:
        """Continues at one call a second: a part of the calls is refused at any rate."""
        self._storm.begin(now)
        self.known_quota.forget()
        self._quota_probes.reset()
        self._growth.forget_wrong_doublings()
        self._resume("steady", PROBE_RATE, 0.0, now)

    def _cut_if_too_fast(self, entered_at: float, now: float) -> None:
        """Cuts the rate if the 429 for the call that went at `entered_at` completes the evidence."""
        epoch, rate = self._epoch, self.rate
        if rate is None:
            quota = None if self._storm.is_recent(now) else self.known_quota.recall(self._accepted.rate(now), now)
            if quota is not None:
                self.since = now
                rate = max(LOWEST_RATE, quota)
                self._resume("quota", rate, 1 / rate, now)
            elif epoch.needs_first_cut(now):
                epoch.restart_background()
                self._cut(epoch.first_accepted_rate(now), now)
        elif epoch.needs_cut(now):
            if epoch.is_in_vain(entered_at, now) and not self._growth.is_part:
                self.forget()
                epoch.begin(now)
            else:
                self._cut(min(rate, max(rate / 2, epoch.accepted_rate(now))), now)

    def _cut(self, accepted: float, now: float) -> None:
        """Cuts the rate, at which `accepted` calls a second were accepted."""
        if self.rate is None:
            self.since = now
        self.rate = self._enter_phase_for(self._epoch.limit(accepted, now) * CUT, now)
        self._growth.begin_recovery(self.rate / CUT, now)
        self._bucket.restart(self.rate, now)
        self._epoch.begin_after_cut(now)

    def _enter_phase_for(self, rate: float, now: float) -> float:
        """Begins the phase for the rate after a cut. Returns the rate in that phase."""
        quota = self._accepted.rate(now)
        is_stop = self._rows.limited >= _STOP_429S or not quota
        if rate >= PROBE_RATE or (quota >= 1 and not is_stop) or (quota and self._storm.is_recent(now)):
            self._begin("steady", now)
            self._is_unconfirmed = is_stop and self._epoch.recent.is_stopped()
            return max(rate, PROBE_RATE)
        if quota >= 1 or not quota:
            self._begin("stopped", now)
            return PROBE_RATE
        is_first = is_stop and self._rows.limited_since <= self.since
        self._begin("quota", now)
        if is_first:
            self._quota_probes.guess(quota, now)
            self._is_unconfirmed = True
            return max(_LEAST_UNCONFIRMED_RATE, quota * CUT)
        accepted = self._accepted.limited_rate(now) * CUT
        return min(PROBE_RATE, max(LOWEST_RATE, accepted if is_stop else max(rate, accepted)))
