"""Who is left alone for a while, because asking again would only tell us the same.

Owns which failures bench whom, and for how long. Does not own breakers, which judge health: a credential without
balance, or a deployment that said when to come back, is not ill.

A bench is a caller's lever on everybody else: what one call can provoke must not put a shared credential to rest. A
missing permission is about what was asked for, and a 401 right after a success is not about the key. A quota that
names a time is often one model's window for the day (Gemini, Groq): then the deployment rests for that time
(`note_wait`), and the credential no longer than without it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from llm_guard.outcome import Failure

Key = tuple[str, ...]

CREDENTIAL_S = 30.0
"""How long a credential rests that was refused twice in a row."""
MAX_S = 86_400.0

# One refusal may be a caller's doing (a tool that wants a key of its own is answered 401 too).
_REFUSALS_IN_A_ROW = 2
_REFUSED_KEY = "auth"
_OF_THE_CREDENTIAL = frozenset({_REFUSED_KEY, "quota_exhausted"})
# Callers' own keys are benched too, each for itself: without a bound anybody could fill the memory.
_CAPACITY = 4096
_MOST_KEPT_BYTES = 1 << 14
_HEADERS_OF_THE_BODY = ("content-type", "content-encoding")


@dataclass(frozen=True, slots=True)
class Benched:
    """Left alone until the monotonic instant `until`, for the sake of `failure`."""

    until: float
    failure: Failure
    since: float = field(default=-inf, compare=False)


@dataclass(slots=True)
class _Entry:
    refusals: int = 0
    accepted_at: float = -inf
    benched: Benched | None = None


class Bench:
    """Credentials and deployments that rest. Bounded: the one not heard of for longest is forgotten first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._last_until = -inf

    def is_empty(self, now: float) -> bool:
        """Surely nobody rests now: then no key need be built to `find` that out."""
        return now >= self._last_until

    def find(self, keys: tuple[Key, ...], now: float) -> Benched | None:
        """The longest rest that any of `keys` has now."""
        rests = [rest for key in keys if (rest := self._rest(key, now)) is not None]
        return max(rests, key=lambda rest: rest.until, default=None)

    def note_refusal(self, credential: Key, failure: Failure, now: float) -> None:
        """The provider refused a credential (`Scope.CREDENTIAL`)."""
        category = failure.kind.category
        if category not in _OF_THE_CREDENTIAL:
            return
        entry = self._entry(credential)
        if category == _REFUSED_KEY and now - entry.accepted_at < CREDENTIAL_S:
            return
        entry.refusals += 1
        if entry.refusals >= _REFUSALS_IN_A_ROW:
            self._put(entry, now + CREDENTIAL_S, failure, now)

    def note_wait(self, deployment: Key, failure: Failure, now: float) -> None:
        """A deployment asked for a wait, `failure.retry_after_s`, that the call could not afford."""
        if failure.retry_after_s is not None:
            self._put(self._entry(deployment), now + min(MAX_S, failure.retry_after_s), failure, now)

    def note_success(self, credential: Key, now: float) -> None:
        """The provider accepted a credential."""
        entry = self._entry(credential)
        entry.refusals = 0
        entry.accepted_at = now

    def snapshot(self, now: float) -> dict[Key, Benched]:
        """Who rests now."""
        return {
            key: entry.benched
            for key, entry in self._entries.items()
            if entry.benched is not None and entry.benched.until > now
        }

    def _rest(self, key: Key, now: float) -> Benched | None:
        entry = self._entries.get(key)
        if entry is None or entry.benched is None or entry.benched.until <= now:
            return None
        # While it rests nothing else is heard of it: a flood of other keys must not push it out.
        self._entries.move_to_end(key)
        return entry.benched

    def lift(self, keys: Iterable[Key], now: float) -> list[Key]:
        """Ends the rests of `keys`; returns those that had one."""
        lifted = [key for key in keys if self._rest(key, now) is not None]
        for key in lifted:
            self._entries[key].benched = None
            self._entries[key].refusals = 0
        return lifted

    def _put(self, entry: _Entry, until: float, failure: Failure, now: float) -> None:
        # A shorter rest must not cut a longer one short (litellm issue 40130).
        if entry.benched is None or until > entry.benched.until:
            entry.benched = Benched(until, _for_others(failure), now)
            self._last_until = max(self._last_until, until)

    def _entry(self, key: Key) -> _Entry:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry
        entry = self._entries[key] = _Entry()
        if len(self._entries) > _CAPACITY:
            self._entries.popitem(last=False)
        return entry


def as_of(benched: Benched, now: float) -> Failure:
    """The failure to tell a client that is not served because of it, with the wait that is left."""
    return replace(benched.failure, retry_after_s=benched.until - now)


def _for_others(failure: Failure) -> Failure:
    """The failure as it may be told to other calls: an answer's words, not its ids, dates and cookies."""
    answer = failure.answer
    if answer is None:
        return failure
    if len(answer.body) > _MOST_KEPT_BYTES:
        return replace(failure, answer=None)
    headers = tuple(pair for pair in answer.headers if pair[0].lower() in _HEADERS_OF_THE_BODY)
    return replace(failure, answer=replace(answer, headers=headers))
