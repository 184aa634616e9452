"""Overrides by operators that hold at all gateways of a fleet: breakers, holds, degraded modes and silences.

`fleet.overrides` exchanges them as bytes; this module finds what changed here, and applies what changed elsewhere.
Limits are not shared, because each gateway has its own, and neither are engines, which belong to their host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.overrides.breaker_overrides import BreakerSelector
from llm_guard.admin.persistence.operator_state import (
    OperatorState,
    SavedBreakerOverride,
    SavedHold,
    SavedMode,
    SavedOverride,
    SavedSilence,
)
from llm_guard.clock import Clock
from llm_guard.fleet.overrides import Applied
from llm_guard.storage.shared.exchange_store import Override, StoredOverride

_FORMS: dict[str, type[SavedOverride]] = {
    "silence": SavedSilence,
    "breaker": SavedBreakerOverride,
    "hold": SavedHold,
    "mode": SavedMode,
}
_ELSEWHERE = {"made": "at another gateway of the fleet"}
_YEAR_S = 366 * 86400.0
"""Instants further in the future are nonsense."""
_UNDATED_S = 1e6
"""Age of a restored silence: when it was set is not saved."""
_STEP_S = 1.0
"""Instants that differ by less are the same."""
_UNREADABLE = (msgspec.DecodeError, ValueError, KeyError, RecursionError)

_Change = tuple[str, str, SavedOverride]
"""Operator, reason, and the override that was set or ended."""


class EndedOverride(msgspec.Struct, frozen=True):
    """Content of an override that an operator has ended."""

    who: str
    reason: str


class SharedOverrides:
    """Implements `fleet.overrides.OverrideTarget`."""

    def __init__(
        self,
        state: OperatorState,
        publish: Callable[[Mapping[str, Override]], None],
        changes: Changes,
        clock: Clock,
    ) -> None:
        self._state = state
        self._publish = publish
        self._changes = changes
        self._clock = clock
        self._known: dict[str, SavedOverride] = {}
        """As of the last change, or of the last look at all."""
        self._known_offset_s = self._offset_s()

    def note_change(self, who: str, reason: str) -> None:
        """Publishes what an operator has just changed."""
        before, moved_s = self._known, self._offset_s() - self._known_offset_s
        self.follow()
        now = self._known
        changed = {
            key: self._changed(saved, undated_s=0.0)
            for key, saved in now.items()
            if key not in before or not _is_same(saved, before[key], moved_s=moved_s)
        }
        ended = msgspec.json.encode(EndedOverride(who, reason))
        for key, saved in before.items():
            if key not in now and not self._has_expired(saved):
                changed[key] = Override(0.0, ended, is_ended=True)
        if changed:
            self._publish(changed)

    def follow(self) -> list[str]:
        """Forgets overrides that ended by themselves, or by a reload, without publishing it: each gateway ends those
        itself. Returns the keys of those that have ended because the config lacks their targets."""
        before = self._known
        self._known, self._known_offset_s = self._by_key(), self._offset_s()
        return [key for key, saved in before.items() if key not in self._known and not self._state.knows(saved)]

    def current(self) -> Mapping[str, Override]:
        self.follow()
        return {key: self._changed(saved, undated_s=_UNDATED_S) for key, saved in self._known.items()}

    def apply(self, changes: Sequence[tuple[str, StoredOverride]]) -> Mapping[str, Applied]:
        found: dict[str, Applied] = {}
        own = self._by_key()
        for key, entry in changes:
            try:
                change = self._end(key, entry, own) if entry.is_ended else self._put(key, entry, own)
            except NotHere:
                found[key] = "not here"
                continue
            except _UNREADABLE:
                found[key] = "unreadable"
                continue
            found[key] = "yes"
            if change is not None:
                who, reason, saved = change
                self._changes.note(who, _action(saved, entry.is_ended), _target(saved), reason, _ELSEWHERE)
        self.follow()
        return found

    def _put(self, key: str, entry: StoredOverride, own: dict[str, SavedOverride]) -> _Change | None:
        """Returns None if there is nothing to do. Raises ValueError if it is nonsense, and NotHere if it cannot be put
        into effect."""
        kind, *_ = msgspec.json.decode(key, type=list[str | None])
        saved: SavedOverride = msgspec.json.decode(entry.content, type=_FORMS[kind or ""])
        wall = self._clock.wall()
        if _key(saved) != key or not 0 <= _since(saved) <= wall + _YEAR_S:
            raise ValueError(key)
        if (saved.until is None) != (entry.left_s is None) or (entry.left_s or 0.0) > 10 * _YEAR_S:
            raise ValueError(key)
        if entry.left_s is not None:  # the clock of the gateway that set it may differ from this one's
            saved = msgspec.structs.replace(saved, until=wall + entry.left_s)
        if not isinstance(saved, SavedSilence):
            saved = msgspec.structs.replace(saved, since=wall - entry.age_s)
        if key in own and _is_same(saved, own[key], since_within_s=_STEP_S):
            return None
        if not self._state.knows(saved) or not self._state.try_put(saved):
            raise NotHere(key)
        own[key] = saved
        return saved.who, saved.reason, saved

    def _end(self, key: str, entry: StoredOverride, own: dict[str, SavedOverride]) -> _Change | None:
        ended = msgspec.json.decode(entry.content, type=EndedOverride)
        saved = own.pop(key, None)
        if saved is None:
            return None
        self._state.end(saved, ended.reason)
        return ended.who, ended.reason, saved

    def _by_key(self) -> dict[str, SavedOverride]:
        return {_key(saved): saved for saved in self._state.overrides()}

    def _changed(self, saved: SavedOverride, undated_s: float) -> Override:
        """`undated_s`: the age of a silence: when it was set is not saved."""
        wall = self._clock.wall()
        left_s = None if saved.until is None else max(0.0, saved.until - wall)
        age_s = undated_s if isinstance(saved, SavedSilence) else max(0.0, wall - saved.since)
        return Override(age_s, msgspec.json.encode(saved), is_ended=False, left_s=left_s)

    def _has_expired(self, saved: SavedOverride) -> bool:
        return saved.until is not None and saved.until <= self._clock.wall()

    def _offset_s(self) -> float:
        return self._clock.wall() - self._clock.now()


class NotHere(LookupError):
    """Raised for an override of something that the config does not have, and for one silence too many."""


def _is_same(
    one: SavedOverride, other: SavedOverride, *, moved_s: float = 0.0, since_within_s: float = 0.0
) -> bool:  # fmt: skip
    """Returns whether both are one override. `moved_s`: by how much this gateway's clock was set in between;
    `since_within_s`: how much their beginnings may differ, where one was computed from an age."""
    if one.until is not None and other.until is not None and abs(one.until - other.until - moved_s) < _STEP_S:
        other = msgspec.structs.replace(other, until=one.until)
    if not isinstance(one, SavedSilence) and not isinstance(other, SavedSilence):
        if abs(one.since - other.since) > since_within_s:
            return False
        other = msgspec.structs.replace(other, since=one.since)
    return one == other


def _key(saved: SavedOverride) -> str:
    """Returns the kind and the target; a second override of both replaces the first."""
    return msgspec.json.encode(_kind_and_target(saved)).decode()


def _kind_and_target(saved: SavedOverride) -> tuple[str | None, ...]:
    match saved:
        case SavedSilence():
            return "silence", saved.alert, saved.subject
        case SavedBreakerOverride():
            return "breaker", saved.deployment, saved.model, saved.upstream
        case SavedHold():
            return "hold", saved.label
        case SavedMode():
            return "mode", saved.model


def _since(saved: SavedOverride) -> float:
    """Returns when it was set, in seconds since the epoch; 0 for a silence: it is not saved."""
    return 0.0 if isinstance(saved, SavedSilence) else saved.since


def _action(saved: SavedOverride, is_ended: bool) -> str:
    match saved:
        case SavedSilence():
            return "alerts.unsilence" if is_ended else "alerts.silence"
        case SavedBreakerOverride():
            set_as = "breakers.force-open" if saved.state == "forced_open" else "breakers.force-closed"
            return "breakers.reset" if is_ended else set_as
        case SavedHold():
            set_as = "deployments.drain" if saved.kind == "drained" else "deployments.cordon"
            return "deployments.uncordon" if is_ended else set_as
        case SavedMode():
            set_as = "degraded.enter" if saved.is_degraded else "degraded.exit"
            return "degraded.auto" if is_ended else set_as


def _target(saved: SavedOverride) -> str:
    match saved:
        case SavedSilence():
            alert = "all" if saved.alert == "*" else saved.alert
            return alert if saved.subject is None else f"{alert}: {saved.subject}"
        case SavedBreakerOverride():
            return str(BreakerSelector(saved.deployment, saved.model, saved.upstream))
        case SavedHold():
            return saved.label
        case SavedMode():
            return saved.model or "gateway"
