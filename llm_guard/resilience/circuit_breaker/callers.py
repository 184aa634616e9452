"""Separates callers that fail alone from those that fail because of the deployment.

Decides which callers are judged separately. `proxy.attempts.admission` identifies a call's caller,
`outcome.FailureKind` defines failures, `resilience.circuit_breaker.breaker` and `resilience.retry.limits` act on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf, log

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.opening_rules import relative_entropy
from llm_guard.resilience.retry.limits import RetryBudget

MOST_CALLERS = 1024
"""Callers that are remembered; the one without a call for longest is dropped first."""

_ACCEPTED_S = 3600.0
_RENEWED_S = 10.0
# A caller fails alone if chance would explain its failures less often than this at the others' share of failures, by
# Chernoff's bound.
_CHANCE = 1e-5
# Prior for the others, as in `resilience.circuit_breaker.breaker`.
_PRIOR_SHARE = 0.1
_PRIOR_CALLS = 2.0
_WORST_SHARE = 0.9
# Time constant with which calls lose their weight.
_FADE_S = 30.0
_FADE_EACH_S = 0.5
_FORGOTTEN = 0.01
# A caller fails like the others again once its share of failures is at most this far on the way from theirs to 1.
_LIKE = 0.25
# Weight of the last call in a caller's own share of failures.
_SMOOTHING = 1 / 20
# While fewer callers than this have failed since the last success, each may send an extra probe at this interval.
# Otherwise only callers with a success as their last call may, one of them in `_LOOK_AMONG_MANY_S`.
MOST_LOOKS = 16
_LOOK_EACH_S = 30.0
_LOOK_AMONG_MANY_S = 0.25
# An extra probe that has not ended after this time does not keep its caller from sending another. Where a provider
# hangs, that is up to 16 callers' probes in 5 s.
_LOOK_LEASE_S = 5.0
# Each wait between such probes differs from the one before, so that no caller with an even pace always comes too late.
_GOLDEN = 0.618034


@dataclass(slots=True)
class Suspect:
    """A caller that fails where others succeed. Until it recovers, its calls are judged by this breaker and this budget
    instead of those shared by all others."""

    breaker: Breaker
    budget: RetryBudget


@dataclass(slots=True)
class _Tally:
    """Calls and failures that lose their weight with time."""

    faded_at: float
    calls: float = 0.0
    failures: float = 0.0

    def note(self, is_failure: bool, now: float) -> None:
        if now - self.faded_at > _FADE_EACH_S:
            self.fade(now)
        self.calls += 1
        self.failures += is_failure

    def fade(self, now: float) -> None:
        kept = exp((self.faded_at - now) / _FADE_S)
        self.faded_at = now
        self.calls *= kept
        self.failures *= kept


@dataclass(slots=True)
class _Record:
    """State of a caller that has failed recently."""

    tally: _Tally
    run: int = 0
    """Failures since its last success."""
    run_began_at: float = 0.0
    share: float = 0.0
    """Recent share of failures."""
    suspect: Suspect | None = None


class Callers:
    """The callers of one deployment. A single caller has no others to be compared with, and is never separated.

    A caller is judged separately once it fails more often than the others by more than chance explains, and a call of
    another caller that began after the first of its latest failures in a row has succeeded: otherwise all may be
    failing since then. It is judged with the others again as soon as it fails hardly more than they do.
    """

    __slots__ = (
        "_accepted", "_looks", "_looks_again_at", "_next_looks", "_ok_began_at", "_records", "_together",
        "has_failures",
    )  # fmt: skip

    def __init__(self) -> None:
        self._accepted: BoundedMap[str, float] = BoundedMap(MOST_CALLERS)
        """Callers' own keys, by digest, with the instant at which the provider last accepted each."""
        self._records: BoundedMap[str, _Record] = BoundedMap(MOST_CALLERS)
        self._together = _Tally(0.0)
        """Calls of all callers that are judged together, while there is a recent failure."""
        self._ok_began_at = -inf
        """When the youngest call that has succeeded began."""
        self._next_looks: dict[str, float] = {}
        """Callers that have failed or sent an extra probe since the last success of any, with the instant from which
        each may send the next one."""
        self._looks = 0
        """Number of extra probes while many callers have failed."""
        self._looks_again_at = -inf
        self.has_failures = False
        """True if a caller has failed recently, so that some may be judged separately. Kept beside the records, because
        every call reads it."""

    def accept(self, key_digest: str, now: float) -> None:
        """Notes that the provider has served a call with this key of a caller's own."""
        self._accepted[key_digest] = now
        self._accepted.move_to_end(key_digest)

    def is_accepted(self, key_digest: str, now: float) -> bool:
        """Returns whether the provider has accepted the key in the last hour. Keys are free to invent: only an accepted
        one distinguishes callers."""
        return now - self._accepted.get(key_digest, -inf) < _ACCEPTED_S

    def suspect(self, caller: str) -> Suspect | None:
        """Returns the caller's separate breaker and budget; None: it is judged with the others."""
        record = self._records.get(caller)
        return None if record is None else record.suspect

    def suspects(self) -> Iterator[tuple[str, Suspect]]:
        for caller, record in self._records.items():
            if record.suspect is not None:
                yield caller, record.suspect

    def note_ok(self, caller: str, began_at: float, now: float, own_key: str = "") -> None:
        """Notes a success of a call that began at `began_at`. `own_key`: digest of the caller's own key, if that was
        sent. Keys in use are renewed often, or many new ones would push them out."""
        if own_key and now - self._accepted.get(own_key, -inf) >= _RENEWED_S:
            self.accept(own_key, now)
        if began_at > self._ok_began_at:
            self._ok_began_at = began_at
        if self._next_looks:
            self._next_looks.clear()
        if not self.has_failures:
            return
        record = self._records.get(caller)
        if record is None:
            self._together.note(False, now)
            return
        record.run = 0
        record.share *= 1 - _SMOOTHING
        record.tally.note(False, now)
        if record.suspect is None:
            self._together.note(False, now)
        elif self._is_like_others(record, now):
            record.suspect = None
        if record.suspect is None and record.tally.failures < _FORGOTTEN:
            del self._records[caller]
            self.has_failures = bool(self._records)

    def note_failure(self, caller: str, now: float) -> bool:
        """Notes a failure that is evidence about the deployment. True: the caller fails alone, and must be judged
        separately from now on (`begin`)."""
        record = self._records.get(caller)
        if record is None:
            record = self._records[caller] = _Record(_Tally(now))
            self.has_failures = True
        self._records.move_to_end(caller)
        if not record.run:
            record.run_began_at = now
        record.run += 1
        record.share += _SMOOTHING * (1 - record.share)
        record.tally.note(True, now)
        # Also for a caller that is judged separately: while the common breaker is not closed, it takes probes too.
        if caller in self._next_looks or len(self._next_looks) < MOST_LOOKS:
            self._next_looks[caller] = now + _LOOK_EACH_S
        if record.suspect is not None:
            return False
        self._together.note(True, now)
        return self._is_alone(record, now)

    def begin(self, caller: str, suspect: Suspect) -> None:
        """Judges the caller by this breaker and budget from now on."""
        record = self._records[caller]
        record.suspect = suspect
        record.share = 1.0
        self._together.calls = max(0.0, self._together.calls - record.tally.calls)
        self._together.failures = max(0.0, self._together.failures - record.tally.failures)

    def try_probe(self, caller: str, now: float, has_lease: bool = True) -> bool:
        """Returns whether a call that the breaker refuses may be sent as an extra probe. Otherwise callers that always
        fail would take every probe, and keep the breaker open for all. `has_lease`: see `Breaker.has_lease`.

        If a few callers have failed since the last success, each other one probes for itself. If many have, which a
        single caller can feign if its provider accepts any key, one that has not failed probes every 250 ms.
        """
        if not has_lease:
            return False
        if len(self._next_looks) < MOST_LOOKS:
            return bool(self._next_looks) and self._try_look(caller, now)
        record = self._records.get(caller)
        if (record is not None and record.run) or now < self._looks_again_at:
            return False
        self._looks += 1
        self._looks_again_at = now + _LOOK_AMONG_MANY_S * (0.5 + self._looks * _GOLDEN % 1)
        return True

    def _try_look(self, caller: str, now: float) -> bool:
        if now < self._next_looks.get(caller, -inf):
            return False
        self._next_looks[caller] = now + _LOOK_LEASE_S
        return True

    def reset(self) -> None:
        """Judges all callers together again: an operator's reset."""
        self._records.clear()
        self.has_failures = False
        self._next_looks.clear()

    def _is_alone(self, record: _Record, now: float) -> bool:
        # A success of its own would have ended the run.
        if self._ok_began_at <= record.run_began_at:
            return False
        own = record.tally
        return is_beyond_chance(own.calls, own.failures, self._share_of_others(own, now))

    def _is_like_others(self, record: _Record, now: float) -> bool:
        others = self._share_of_others(_Tally(now), now)
        return record.share < others + _LIKE * (1 - others)

    def _share_of_others(self, own: _Tally, now: float) -> float:
        """Returns the share of failures of the other callers, at most 0.9."""
        self._together.fade(now)
        own.fade(now)
        together = self._together
        return share_of_failures(together.calls - own.calls, together.failures - own.failures)


def share_of_failures(calls: float, failures: float) -> float:
    """Returns the share of failures of calls, with a prior; at most 0.9. Fewer calls than none count as none."""
    failing = max(0.0, failures) + _PRIOR_CALLS * _PRIOR_SHARE
    return min(_WORST_SHARE, failing / (max(0.0, calls) + _PRIOR_CALLS))


def is_beyond_chance(calls: float, failures: float, others: float) -> bool:
    """Returns whether chance hardly explains so many failures of a caller's calls, where `others` is the share of
    failures of all other callers."""
    share = failures / calls if calls > 0 else 0.0
    return share > others and calls * relative_entropy(share, others) >= -log(_CHANCE)
