"""Cooldowns: deployments and credentials that are not sent requests for a while, because the provider said so.

Decides which failures begin a cooldown, how far it reaches and how it ends. Breakers are separate, because they judge
health: a credential without balance, or a deployment that named a time to return, is not unhealthy.

A cooldown stops every call, so it is narrow, short and verified:

- A spent quota first stops one model of one credential; many providers count quotas by model. The whole credential is
  stopped for a refused key, or when a second model reports a spent quota with no success in between.
- A provider's hint is obeyed up to a cap. What a single call can provoke must not stop a shared credential: a missing
  permission is about the request, and a 401 right after a success is not about the key.
- At its end one call goes first. The cooldown is over when that call succeeds, or is not refused within `PROBE_S`.
- It stops only the callers that were refused: a provider may limit one user of an account. Every other caller is tried
  on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import inf

from llm_guard.outcome import Failure
from llm_guard.resilience.bounded_map import BoundedMap

CooldownKey = tuple[str, ...]

CREDENTIAL_S = 6.0
"""Cooldown of a refused key or a spent quota. A call refused for either costs nothing, so one call in six seconds
checks whether it is lifted."""
ACCEPTED_S = 30.0
"""A key that was accepted within this time is not wrong, whichever 401 a caller provokes."""
PROBE_S = 2.0
"""After a cooldown one call goes first. Providers refuse fast: a call that is not refused for this long was accepted,
and a response that takes minutes must not keep other calls out."""

# One refusal may be caused by a caller (a tool that needs a key of its own also gets a 401).
_REFUSALS_IN_A_ROW = 2
_REFUSED_KEY = "auth"
_SPENT = "quota_exhausted"
# A cooldown that no call has met for this long after its end is over without a first call.
_FORGOTTEN_S = 30.0
# Callers' own keys have cooldowns too: without a bound any caller could fill the memory.
_CAPACITY = 4096
_MOST_MODELS = 64
# A cooldown for which more callers than this were refused stops all callers.
_MOST_REFUSED_CALLERS = 64
_MOST_KEPT_BYTES = 1 << 14
_HEADERS_OF_THE_BODY = ("content-type", "content-encoding")


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A cooldown until the monotonic instant `until`, because of `failure`."""

    until: float
    failure: Failure
    since: float = 0.0
    callers: frozenset[str] | None = None
    """Callers that it stops; None: all callers."""
    began_at: float = field(default=0.0, compare=False)
    """When the first of the cooldowns began that followed each other without a success."""
    stopped: int = field(default=0, compare=False)
    """Calls stopped since then."""

    def stops(self, caller: str) -> bool:
        return self.callers is None or caller in self.callers


@dataclass(slots=True)
class _Entry:
    refusals: int = 0
    """Refused keys since the last success."""
    refused: set[str] | None = None
    """Callers that were refused since the last success."""
    accepted_at: float = -inf
    spent: BoundedMap[str, int] | None = None
    """Spent quotas in a row, by model."""
    spent_last: str | None = None
    """The model that reported a spent quota last; None: none since the last success of any model."""
    active: Cooldown | None = None
    probed_at: float = -inf
    """When a call was last let through although the cooldown was not over."""
    stopped: int = 0
    """Calls stopped by `active`, and by those that it prolongs."""


class Cooldowns:
    """Cooldowns by key. Bounded: the one unused for longest is dropped first."""

    def __init__(self) -> None:
        self._entries = BoundedMap[CooldownKey, _Entry](_CAPACITY)
        self._newest: _Entry | None = None
        """The one used last."""
        self.quiet_from = -inf
        """From this instant on there is surely no cooldown, so no key need be built for `find`."""

    def find(self, credential: CooldownKey, model: str, now: float, caller: str = "") -> Cooldown | None:
        """Returns the cooldown, if any, that stops a caller's call for `model` with this credential. Its `until` is >
        `now`."""
        stops = [
            self._stop(credential, now, caller, may_probe=self._is_unspent(credential, model)),
            self._stop(quota_key(credential, model), now, caller),
        ]
        return max((stop for stop in stops if stop is not None), key=lambda stop: stop.until, default=None)

    def find_hint(self, deployment: CooldownKey, now: float, caller: str = "") -> Cooldown | None:
        """Returns the cooldown, if any, that a provider's hint put on a deployment. Its `until` is > `now`."""
        return self._stop(deployment, now, caller)

    def note_sent(self, keys: Iterable[CooldownKey], now: float, caller: str = "") -> None:
        """Notes that a caller's call with these keys was let through. At the end of a cooldown it is the call that goes
        first; a later one shows that the first was not refused."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.active is None or not entry.active.stops(caller):
                continue
            if entry.probed_at < entry.active.until:
                entry.probed_at = now
                self.quiet_from = max(self.quiet_from, now + PROBE_S)
            else:
                entry.active = None

    def note_stopped(self, keys: Iterable[CooldownKey]) -> None:
        """Notes that a call with these keys was stopped: a key in use is kept, however many others come."""
        for key in keys:
            if key in self._entries:
                entry = self._entry(key)
                entry.stopped += entry.active is not None

    def note_refusal(self, credential: CooldownKey, model: str, failure: Failure, now: float, caller: str = "") -> None:
        """Notes that the provider refused a credential (`Scope.CREDENTIAL`) in a caller's call for `model`."""
        category = failure.kind.category
        if category not in (_REFUSED_KEY, _SPENT):
            return
        entry = self._entry(credential)
        refused = entry.refused = entry.refused or set()
        if len(refused) <= _MOST_REFUSED_CALLERS:
            refused.add(caller)
        if category == _REFUSED_KEY:
            self._note_refused_key(entry, failure, now)
        else:
            self._note_spent(credential, model, failure, now)

    def note_refused_alone(self, credential: CooldownKey, model: str, failure: Failure, now: float) -> None:
        """Notes that a call for which this credential was refused has been served with another one: no second refusal
        is needed to know that the credential is at fault, or for a spent quota the credential with this model."""
        category = failure.kind.category
        if category == _REFUSED_KEY:
            self._put(self._entry(credential), now + CREDENTIAL_S, failure, now)
        elif category == _SPENT:
            self._put(self._entry(quota_key(credential, model)), now + CREDENTIAL_S, failure, now)

    def note_wait(self, deployment: CooldownKey, failure: Failure, cap_s: float, now: float, caller: str = "") -> None:
        """Notes that a deployment sent a caller a hint, `failure.retry_after_s`, longer than the call could wait. It is
        obeyed for at most `cap_s`."""
        if failure.retry_after_s is not None:
            self._put(self._entry(deployment), now + min(cap_s, failure.retry_after_s), failure, now, {caller})

    def note_success(
        self, credential: CooldownKey, model: str, started_at: float, now: float, caller: str = ""
    ) -> None:
        """Notes that the provider served a caller's call for `model` that was sent at `started_at`: cooldowns that
        began before that are over for this caller."""
        entry = self._entry(credential)
        entry.refusals = 0
        entry.refused = None
        entry.accepted_at = now
        entry.spent_last = None
        if entry.spent:
            entry.spent.pop(model, None)
        if now < self.quiet_from:
            for key in (credential, quota_key(credential, model), deployment_key(credential, model)):
                self._end(key, started_at, caller)

    def lift(self, keys: Iterable[CooldownKey], now: float) -> list[CooldownKey]:
        """Ends the cooldowns of these keys and forgets their refusals; returns the keys that had one that stopped
        calls."""
        entries = {key: entry for key in keys if (entry := self._entries.get(key)) is not None}
        stopping = [key for key, entry in entries.items() if self._current(entry, now) is not None]
        for entry in entries.values():
            entry.active = entry.spent = entry.spent_last = entry.refused = None
            entry.refusals = 0
        return stopping

    def expire(self, keys: Iterable[CooldownKey], now: float) -> None:
        """Brings the cooldowns of these keys to their end: from now on one call may go first."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and entry.active is not None and entry.active.until > now:
                entry.active = replace(entry.active, until=now)

    def hints(self, upstream: str, model: str | None) -> list[CooldownKey]:
        """Returns the keys of the cooldowns that an upstream's hints put on its deployments; `model` None: on all of
        them."""
        return [
            key
            for key, entry in self._entries.items()
            if entry.active is not None and key[0] == "deployment" and key[2] == upstream and model in (None, key[-1])
        ]

    def snapshot(self, now: float) -> dict[CooldownKey, Cooldown]:
        """Returns the cooldowns that stop calls now."""
        if now >= self.quiet_from:
            return {}
        stops = ((key, entry, self._current(entry, now)) for key, entry in self._entries.items())
        return {key: replace(stop, stopped=entry.stopped) for key, entry, stop in stops if stop is not None}

    # The end of a cooldown

    def _stop(self, key: CooldownKey, now: float, caller: str, *, may_probe: bool = False) -> Cooldown | None:
        entry = self._entries.get(key)
        if entry is None or (stop := self._current(entry, now)) is None or not stop.stops(caller):
            return None
        if may_probe and now >= max(stop.since, entry.probed_at) + PROBE_S:
            return None
        return stop

    @staticmethod
    def _current(entry: _Entry, now: float) -> Cooldown | None:
        """Returns the cooldown as it is now: past its end it lasts for the others while one call goes first."""
        cooldown = entry.active
        if cooldown is None or now < cooldown.until:
            return cooldown
        ends_at = entry.probed_at + PROBE_S
        is_probed = cooldown.until <= entry.probed_at < cooldown.until + _FORGOTTEN_S
        return replace(cooldown, until=ends_at) if is_probed and now < ends_at else None

    def _is_unspent(self, credential: CooldownKey, model: str) -> bool:
        """Returns whether a cooldown of the whole credential is for a spent quota that `model` has not reported: that
        model may have quota left, and only a call can show it."""
        entry = self._entries.get(credential)
        if entry is None or entry.active is None or entry.active.failure.kind.category != _SPENT:
            return False
        return model not in (entry.spent or ())

    def _end(self, key: CooldownKey, before: float, caller: str) -> bool:
        """Ends a cooldown that stops this caller and began at or before that instant."""
        entry = self._entries.get(key)
        if entry is None or entry.active is None or entry.active.since > before:
            return False
        if not entry.active.stops(caller):
            return False
        entry.active = None
        return True

    # The beginning of a cooldown

    def _note_refused_key(self, entry: _Entry, failure: Failure, now: float) -> None:
        if now - entry.accepted_at < ACCEPTED_S:
            return
        entry.refusals += 1
        if entry.refusals >= _REFUSALS_IN_A_ROW:
            self._put(entry, now + CREDENTIAL_S, failure, now, entry.refused)

    def _note_spent(self, credential: CooldownKey, model: str, failure: Failure, now: float) -> None:
        entry = self._entry(credential)
        is_second_model = entry.spent_last not in (None, model)
        entry.spent_last = model
        spent = entry.spent = entry.spent or BoundedMap(_MOST_MODELS)
        spent[model] = spent.get(model, 0) + 1
        if spent[model] >= _REFUSALS_IN_A_ROW:
            self._put(self._entry(quota_key(credential, model)), now + CREDENTIAL_S, failure, now, entry.refused)
        if is_second_model:
            self._put(entry, now + CREDENTIAL_S, failure, now, entry.refused)

    def _put(
        self, entry: _Entry, until: float, failure: Failure, now: float, refused: AbstractSet[str] | None = None
    ) -> None:  # fmt: skip
        """Begins or prolongs a cooldown of the callers that were refused; None: of all callers."""
        cooldown = entry.active
        callers = _joined(cooldown, refused, now)
        # A shorter cooldown must not cut a longer one short (litellm issue 40130).
        if cooldown is None or until > cooldown.until:
            is_prolonged = cooldown is not None and now < cooldown.until + _FORGOTTEN_S
            began_at = cooldown.began_at if cooldown is not None and is_prolonged else now
            entry.stopped *= is_prolonged
            entry.active = Cooldown(until, _for_others(failure), now, callers, began_at)
            entry.probed_at = -inf
            self.quiet_from = max(self.quiet_from, until + _FORGOTTEN_S)
        elif callers != cooldown.callers:
            entry.active = replace(cooldown, callers=callers)

    def _entry(self, key: CooldownKey) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        elif entry is not self._newest:
            self._entries.move_to_end(key)
        self._newest = entry
        return entry


def quota_key(credential: CooldownKey, model: str) -> CooldownKey:
    """Returns the key of one model with a credential: providers count quotas by model and account."""
    return ("quota", *credential[1:], model)


def deployment_key(credential: CooldownKey, model: str) -> CooldownKey:
    """Returns the key of a model with one credential, to which a provider's hint applies."""
    return ("deployment", *credential, model)


def as_of(cooldown: Cooldown, now: float) -> Failure:
    """Returns the failure for a call that a cooldown stops, with the remaining wait."""
    return replace(cooldown.failure, retry_after_s=cooldown.until - now)


def _joined(cooldown: Cooldown | None, refused: AbstractSet[str] | None, now: float) -> frozenset[str] | None:
    """Returns the callers that are stopped once more callers were refused; None: all callers."""
    if refused is None:
        return None
    callers = frozenset(refused)
    if cooldown is not None and now < cooldown.until:
        if cooldown.callers is None:
            return None
        callers |= cooldown.callers
    return callers if len(callers) <= _MOST_REFUSED_CALLERS else None


def _for_others(failure: Failure) -> Failure:
    """Returns the failure as other calls may see it: with the response's body, but without ids, dates and cookies."""
    answer = failure.answer
    if answer is None:
        return failure
    if len(answer.body) > _MOST_KEPT_BYTES:
        return replace(failure, answer=None)
    headers = tuple(pair for pair in answer.headers if pair[0].lower() in _HEADERS_OF_THE_BODY)
    return replace(failure, answer=replace(answer, headers=headers))
