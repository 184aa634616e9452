"""The candidates of a call: which deployments it may try, in which order, from when, and how long each may take.

Orders a route's targets by priority and load, for which it measures each deployment's latency and cost; holds those
that one call has left; and splits the call's deadline over them. `resilience.retry.decision` decides when to move on
from one, `resilience.retry.hedging` uses the latency too. `proxy.attempts.admission` knows which ones are in cooldown,
failing or full, and the timer of the six timeouts is `clock.TimeLimit`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf
from typing import Annotated, Literal

from llm_guard.outcome import Failure, FailureKind, Limit
from llm_guard.resilience.retry.decision import FallBack, Retry
from llm_guard.resilience.units import Factor, OptionalSeconds, Seconds, Unit, at_least, number_from

CAPACITY = 512
WINDOW_S = 300.0
ENOUGH = 20
"""Least number of exchanges for a quantile to mean anything."""

DECAY_S = 10.0
"""Time constant of `PeakEwma`, as in finagle's balancer."""
FORGOTTEN_S = 30.0
"""After this long without a result a deployment counts as unknown: its cost has decayed to a twentieth, and would
attract all calls at once before the first response corrects it."""
PENALTY = 10.0
"""Factor by which a failure counts as longer than the usual response."""

# A product such as 0.95 * 20 may end slightly above the whole number that it is.
_HAIR = 1e-9


@dataclass(frozen=True, slots=True)
class LatencySnapshot:
    """Quantiles in seconds; None: too few exchanges, or so many were cut that the quantile is unknown."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    count: int
    """Exchanges in the window, including those that were cut."""
    cut: int


class Latency:
    """Durations of a deployment's last 512 exchanges within five minutes: to the end, or to the first token.

    An exchange that was cut while unfinished (a timeout, the loser of a hedge) counts as longer than all that finished:
    without it the sample would only have survivors, and the quantiles of a deployment that hangs would fall. One that
    was cut before the median means nothing (the twin of a hedged call that was served at once) and is left out.
    """

    __slots__ = ("_finished", "_recent", "_unsorted", "longest_s")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        """Time and duration of each exchange, infinite for a cut one. Oldest first."""
        self._unsorted = 0
        """Number of the newest entries that are not sorted in yet: that is done when a quantile is read."""
        self._finished: list[float] = []
        """Finite durations of all other entries, sorted."""
        self.longest_s = 0.0
        """The longest finished exchange so far; it does not age."""

    @property
    def has_history(self) -> bool:
        """True if there may be enough exchanges for a quantile."""
        return len(self._recent) >= ENOUGH

    def note(self, duration_s: float, now: float) -> None:
        """Notes an exchange that ended by itself."""
        self._recent.append((now, duration_s))
        self._unsorted += 1
        if duration_s > self.longest_s:
            self.longest_s = duration_s
        if len(self._recent) > CAPACITY:
            self._drop_oldest()

    def note_cut(self, at_least_s: float, now: float) -> None:
        """Notes an exchange that was cut, unfinished, after `at_least_s`."""
        self._look(now)
        finished = self._finished
        if finished and at_least_s < finished[len(finished) // 2]:
            return
        self._recent.append((now, inf))
        if len(self._recent) > CAPACITY:
            self._drop_oldest()

    def quantile(self, q: float, now: float) -> float | None:
        """Returns the seconds within which a share `q`, in (0, 1], of the exchanges ended: the nearest rank, not
        interpolated.

        Infinite if it falls among those that were cut; None below 20 exchanges.
        """
        self._look(now)
        count = len(self._recent)
        if count < ENOUGH:
            return None
        rank = ceil(q * count - _HAIR) - 1
        return self._finished[rank] if rank < len(self._finished) else inf

    def snapshot(self, now: float) -> LatencySnapshot:
        p50_s, p95_s, p99_s = (known(self.quantile(q, now)) for q in (0.5, 0.95, 0.99))
        count = len(self._recent)
        return LatencySnapshot(p50_s, p95_s, p99_s, count, count - len(self._finished))

    def _look(self, now: float) -> None:
        """Drops entries that are too old, and sorts in new ones."""
        recent = self._recent
        while recent and recent[0][0] <= now - WINDOW_S:
            self._drop_oldest()
        while self._unsorted:
            _, duration_s = recent[-self._unsorted]
            self._unsorted -= 1
            insort(self._finished, duration_s)

    def _drop_oldest(self) -> None:
        _, duration_s = self._recent.popleft()
        if self._unsorted > len(self._recent):
            self._unsorted -= 1
        elif duration_s < inf:
            del self._finished[bisect_left(self._finished, duration_s)]


@dataclass(frozen=True, slots=True)
class PeakEwmaSnapshot:
    """Seconds; None: unknown."""

    cost_s: float | None
    usual_s: float | None
    """Mean of successes alone."""


class PeakEwma:
    """A mean latency that rises at once and falls slowly (after finagle's `PeakEwma`, decay 10 s).

    It decays while there are no results, so that a slow deployment is tried again; reading it changes nothing. A
    failure costs as much as a response ten times as long as usual: an error of 5 ms must not look fast. The penalty is
    relative, so that if all fail now and then the slow one still looks slow.
    """

    __slots__ = ("_answered_at", "_heard_at", "_peak_s", "_usual_s")

    def __init__(self) -> None:
        self._peak_s = 0.0
        self._heard_at = -inf
        self._usual_s = 0.0
        self._answered_at = -inf

    def note(self, duration_s: float, now: float) -> None:
        """Notes a success."""
        kept = _kept(now - self._answered_at)
        self._usual_s = self._usual_s * kept + duration_s * (1 - kept)
        if self._answered_at != self._heard_at:
            kept = _kept(now - self._heard_at)
        self._answered_at = now
        self._follow(duration_s, kept, now)

    def note_failure(self, duration_s: float, now: float) -> None:
        """Notes a failure after `duration_s`, a timeout included; it counts as at least 10 s until a first success."""
        self._follow(max(duration_s, PENALTY * (self._usual_s or 1.0)), _kept(now - self._heard_at), now)

    def note_cut(self, at_least_s: float, now: float) -> None:
        """Notes an exchange that was cut through no fault of its own, and would have taken longer: it can only raise
        the cost."""
        kept = _kept(now - self._heard_at)
        if at_least_s > self._peak_s * kept:
            self._follow(at_least_s, kept, now)

    def cost_s(self, now: float) -> float | None:
        """Returns a pessimistic estimate of a response's duration in seconds; None: no result for 30 s."""
        silent_s = now - self._heard_at
        return None if silent_s > FORGOTTEN_S else self._peak_s * _kept(silent_s)

    def snapshot(self, now: float) -> PeakEwmaSnapshot:
        return PeakEwmaSnapshot(self.cost_s(now), self._usual_s if self._answered_at > -inf else None)

    def _follow(self, duration_s: float, kept: float, now: float) -> None:
        rises = duration_s > self._peak_s
        self._peak_s = duration_s if rises else self._peak_s * kept + duration_s * (1 - kept)
        self._heard_at = now


def known(quantile_s: float | None) -> float | None:
    """Returns the quantile if it is known and finite, else None."""
    return None if quantile_s is None or quantile_s == inf else quantile_s


def _kept(passed_s: float) -> float:
    """Returns the share of an old value that is left; 0 if there was none (`passed_s` infinite)."""
    return exp(-passed_s / DECAY_S)


Balance = Literal["order", "weighted", "least_loaded", "latency"]
"""order: as written; weighted: at random; least_loaded: by calls in flight; latency: by cost and calls in flight."""

Draw = Callable[[], float]
"""Source of uniform draws from [0, 1)."""


def parse_priority(value: object) -> int:
    """Checks a whole number of at least 0; raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"not a priority: {value!r:.60}; write a whole number, 0 for the first")
    return value


Weight = Annotated[float, Unit(at_least(0.001), number_from(0.001))]
"""Share of the traffic, relative to the other deployments'."""
Priority = Annotated[int, Unit(parse_priority, {"type": "integer", "minimum": 0})]
"""0 is tried first."""


# A deployment is failing if its share of failures is more than twice the best one's, plus this much: the margin takes
# more than one failure if few attempts are known.
_MUCH = 2.0
_FEW = 0.1


@dataclass(frozen=True, slots=True)
class LoadCandidate:
    """One target of a call."""

    group: int
    """Lower groups come first regardless of load: one number for each alias of the call and priority within it."""
    weight: float = 1.0
    """> 0."""
    in_flight: int = 0
    cost_s: float | None = None
    """`PeakEwma.cost_s`; None: unknown."""


def arranged(candidates: Sequence[LoadCandidate], how: Balance, draw: Draw) -> tuple[int, ...]:
    """Returns the indices of all candidates in the order in which to try them; groups are not mixed."""
    groups: dict[int, list[int]] = {}
    for index, candidate in enumerate(candidates):
        groups.setdefault(candidate.group, []).append(index)
    order: list[int] = []
    for group in sorted(groups):
        members = groups[group]
        order += members if len(members) == 1 else _within(members, candidates, how, draw)
    return tuple(order)


def failing_last(order: Sequence[int], groups: Sequence[int], shares: Sequence[float]) -> tuple[int, ...]:
    """Moves members that fail much more often than the best of their group behind its others, and keeps the order
    otherwise. `shares`: the recent share of failed attempts of each, 0 to 1."""
    best: dict[int, float] = {}
    for index in order:
        best[groups[index]] = min(shares[index], best.get(groups[index], 1.0))
    is_failing = {index: shares[index] > best[groups[index]] * _MUCH + _FEW for index in order}
    return tuple(sorted(order, key=lambda index: (groups[index], is_failing[index])))


def _within(members: list[int], candidates: Sequence[LoadCandidate], how: Balance, draw: Draw) -> list[int]:
    match how:
        case "order":
            return members
        case "weighted":
            return _by_lot(members, candidates, draw)
        case "least_loaded":
            lots = _by_lot(members, candidates, draw)
            return sorted(lots, key=lambda index: candidates[index].in_flight / candidates[index].weight)
        case "latency":
            return _by_latency(_by_lot(members, candidates, draw), candidates)


def _by_lot(members: list[int], candidates: Sequence[LoadCandidate], draw: Draw) -> list[int]:
    """Returns a random order in which each comes first in proportion to its weight.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006): the keys u ** (1 / weight), here
    their logarithms, which do not underflow.
    """
    keys = {index: -math.log(1.0 - draw()) / candidates[index].weight for index in members}
    return sorted(members, key=keys.__getitem__)


def _by_latency(lots: list[int], candidates: Sequence[LoadCandidate]) -> list[int]:
    """Returns the better of the first two drawn, then all others, best first.

    Two choices suffice (Mitzenmacher 2001), and unlike the best of all they differ between calls that choose at the
    same moment. A deployment without a cost of its own counts as the best known one: it gets traffic at once, and as
    its calls in flight count too, no more than the best would get. Finagle lets one call through and then waits for
    its response, tower assumes a second: with responses of half a minute both guesses are far off.
    """
    known = [cost_s for index in lots if (cost_s := candidates[index].cost_s) is not None]
    best_s = min(known, default=1.0)

    def load(index: int) -> float:
        candidate = candidates[index]
        cost_s = best_s if candidate.cost_s is None else candidate.cost_s
        return cost_s * (candidate.in_flight + 1) / candidate.weight

    first = min(lots[:2], key=load)
    return [first, *sorted((index for index in lots if index != first), key=load)]


ATTEMPT_S = 600.0
"""The attempt limit if none is configured and the client's own timeout is unknown: the default of the official SDKs."""
FIRST_TOKEN_S = 120.0
"""The first_token limit if none is configured, unless the deployment's own p99 requires more."""
_LEARNED_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """A first_token limit learned from the deployment's own p99; the configured one stays the longest."""

    factor: Factor = _LEARNED_FACTOR
    """The limit in units of p99."""
    min: Seconds = 1.0
    """The shortest limit, in seconds."""


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Durations in seconds, each > 0. The names are those of `outcome.Limit`."""

    connect: Seconds = 5.0
    """TCP and TLS."""
    first_token: OptionalSeconds = None
    """Streams: request sent to first useful event. None: two minutes, or three times the deployment's own p99 if
    that is longer: models that think for minutes before their first token are slow, not broken."""
    idle: Seconds = 30.0
    """Streams: longest silence between chunks."""
    stall: Seconds = 180.0
    """Streams, after the first token: longest time without a useful event, however many keep-alives come."""
    attempt: OptionalSeconds = None
    """Unary: one exchange, to the last byte of the response. None: as long as the client waits by its own headers, or
    ten minutes: an exchange that is cut while the provider works on it is paid for and lost. For a body that is sent
    while it arrives, it begins with the last byte of the body."""
    total: Seconds = 600.0
    """The call: all attempts, waits and the whole stream."""
    learned: LearnedSettings | None = None
    """None: first_token is as configured."""

    def attempt_s(self, *, is_client_timeout_known: bool) -> float:
        """Returns the attempt limit in seconds; infinite if only the client's own timeout counts."""
        if self.attempt is not None:
            return self.attempt
        return inf if is_client_timeout_known else ATTEMPT_S

    def is_configured(self, limit: Limit | None) -> bool:
        """Returns whether the limit of that name was configured for the model; the others have fixed defaults."""
        return (limit != "attempt" or self.attempt is not None) and (
            limit != "first_token" or self.first_token is not None or self.learned is not None
        )


def deadline_at(now: float, total_s: float, client_timeout_s: float | None) -> float:
    """Returns the instant at which a call received at `now` ends; a client's own timeout can only shorten it."""
    return now + (total_s if client_timeout_s is None else min(total_s, client_timeout_s))


def earlier(limit_at: float, name: Limit, deadline_at: float) -> tuple[float, Limit]:
    """Returns the earlier instant and its name: `name`, or "total" for the deadline (also on a tie)."""
    return (limit_at, name) if limit_at < deadline_at else (deadline_at, "total")


def first_token_s(settings: TimeoutSettings, latency: Latency, now: float) -> float:
    """Returns the first_token limit in seconds; `latency` is that of the deployment's first tokens.

    A deployment with more than one cut stream in a hundred has no known p99, so a learned limit
    that is too short returns to the configured one by itself.
    """
    configured, learned = settings.first_token, settings.learned
    longest_s = FIRST_TOKEN_S if configured is None else configured
    if learned is not None:
        p99_s = known(latency.quantile(0.99, now))
        return longest_s if p99_s is None else min(longest_s, max(learned.min, learned.factor * p99_s))
    if configured is None and latency.longest_s * _LEARNED_FACTOR > FIRST_TOKEN_S:
        return max(FIRST_TOKEN_S, _LEARNED_FACTOR * (known(latency.quantile(0.99, now)) or 0.0))
    return longest_s


def attempt_ends_at(now: float, limit_s: float, deadline_at: float, reserve_s: float) -> float:
    """Returns the instant at which an attempt begun at `now` ends, with `reserve_s` kept for one more after it.

    An attempt that would end at or before `now` is not started.
    """
    return min(now + limit_s, deadline_at - reserve_s)


def reserve_s(
    left_s: float, limit_s: float, own: Latency, following: Latency | None, now: float, least_s: float = 0.0
) -> float:
    """Returns the seconds to keep of the `left_s` until the deadline, so that one more attempt would still fit.

    They are the p95 of `following`, the deployment that would be tried next (it may be the same one), or None if no
    further attempt is allowed. Nothing is kept without that history, nor if the attempt at hand, limited to `limit_s`,
    would be left with less than its own p99, less than `least_s` or less than half of the time that is left.
    """
    expected_s = None if following is None else known(following.quantile(0.95, now))
    if expected_s is None:
        return 0.0
    p99_s = known(own.quantile(0.99, now))
    needed_s = limit_s if p99_s is None else min(limit_s, max(p99_s, least_s))
    return expected_s if left_s - expected_s >= max(needed_s, left_s / 2) else 0.0


def can_finish(now: float, deadline_at: float, latency: Latency) -> bool:
    """Returns whether an attempt begun at `now` may end in time, if as fast as the deployment's fastest responses
    (p5)."""
    left_s = deadline_at - now
    fastest_s = known(latency.quantile(0.05, now))
    return left_s > 0 and (fastest_s is None or left_s >= fastest_s)


def timeout_failure(name: str, timeouts: TimeoutSettings, *, is_before_sending: bool = False) -> Failure:
    """Returns the failure of an exchange that ran into the limit called `name`."""
    said = {
        "connect": f"no connection within {timeouts.connect:g} s",
        "first_token": f"no first token within {timeouts.first_token or FIRST_TOKEN_S:g} s",
        "idle": f"silent for {timeouts.idle:g} s in the middle of the stream",
        "stall": f"nothing but keep-alives for {timeouts.stall:g} s in the middle of the stream",
        "attempt": f"no complete response within {timeouts.attempt or ATTEMPT_S:g} s",
        "total": "the call's total timeout, or the client's own, has passed",
    }
    limit: Limit = name  # type: ignore[assignment]  # TimeLimit returns the name it was given
    kind = FailureKind.CONNECT_TIMEOUT if name == "connect" else FailureKind.TIMEOUT
    return Failure(kind, said[name], limit=limit, is_before_sending=is_before_sending)


WaitedFor = Literal["", "backoff", "retry-after", "queue", "probe"]
"""Cause of a wait: nothing, our own backoff, the upstream's hint, other calls before this one, or a missing lease to
send a probe."""


@dataclass(slots=True, eq=False)
class Candidate:
    """One deployment that a call may try."""

    place: int
    """Index of its target in the route."""
    alias: str
    retries: int = 0
    """Retries made or decided on."""
    previous_s: float | None = None
    """The wait before the last retry."""
    not_before: float = -inf
    waited_for: WaitedFor = ""
    probe_waits: int = 0
    """Waits for the lease to send a probe."""
    is_paid: bool = False
    """True if the next retry has taken its tokens."""


class Candidates:
    """The candidates of one call: those not tried yet in the route's order, then those that may be tried again."""

    __slots__ = ("_current", "_stops")

    def __init__(self, stops: list[Candidate]) -> None:
        self._stops = stops
        self._current: Candidate | None = None

    def next(self) -> tuple[Candidate, ...]:
        """Returns the candidates that may be tried now or later, the preferred one first; empty: the call is over. One
        that is to be retried before all others is returned alone."""
        return (self._current,) if self._current is not None else tuple(self._stops)

    def all(self) -> tuple[Candidate, ...]:
        """Returns all candidates that have not been dropped."""
        return tuple(self._stops)

    def others(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """Returns all candidates except this one."""
        return tuple([stop for stop in self._stops if stop is not candidate])

    def first_other(self, candidate: Candidate) -> Candidate | None:
        """Returns the candidate that would be tried after this one."""
        for stop in self._stops:
            if stop is not candidate:
                return stop
        return None

    def peers(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """Returns the other candidates of the same model."""
        return tuple([other for other in self._stops if other is not candidate and other.alias == candidate.alias])

    def has_others(self) -> bool:
        """Returns whether more than one candidate has not been dropped."""
        return len(self._stops) > 1

    def retry(self, candidate: Candidate, step: Retry, now: float) -> None:
        """Retries this candidate before all others."""
        self._await(candidate, step.after_s, step.is_hint, now)
        candidate.is_paid = True
        self._current = candidate

    def ask_again(self, candidate: Candidate) -> None:
        """Tries this candidate again at once, before all others. Not a retry: another key is used."""
        candidate.not_before = -inf
        self._current = candidate

    def fall_back(self, candidate: Candidate, step: FallBack, now: float) -> None:
        """Tries the others first, and this one again after them, or after those of its own model, if at all."""
        self._current = None
        self._stops.remove(candidate)
        if step.to_other_model:
            self._stops = [other for other in self._stops if other.alias != candidate.alias]
        if step.back_after_s is not None:
            self._await(candidate, step.back_after_s, step.is_hint, now)
            self._stops.insert(len(self._stops) if step.is_last else self._end_of_peers(candidate), candidate)

    def drop(self, candidate: Candidate) -> None:
        """Asks it no more."""
        self._current = None
        self._stops.remove(candidate)

    def release(self) -> bool:
        """Ends the precedence of a candidate that is to be retried first; False: there was none, or there are no
        others."""
        did_stand = self._current is not None and len(self._stops) > 1
        self._current = None
        return did_stand

    def _end_of_peers(self, candidate: Candidate) -> int:
        """Returns the index after the leading candidates of the same model."""
        stops = self._stops
        return next((place for place, other in enumerate(stops) if other.alias != candidate.alias), len(stops))

    @staticmethod
    def _await(candidate: Candidate, wait_s: float, is_hint: bool, now: float) -> None:
        candidate.retries += 1
        candidate.previous_s = wait_s
        candidate.not_before = now + wait_s
        candidate.waited_for = "retry-after" if is_hint else "backoff"
        candidate.is_paid = False
