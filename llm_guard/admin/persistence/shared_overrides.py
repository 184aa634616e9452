"""Overrides by operators that hold at all gateways of a fleet: breakers, holds, degraded modes and silences.

`fleet.overrides` exchanges them as bytes; this module says what changed here, and applies what changed elsewhere.
Limits are not shared, because each gateway has its own, and neither are engines, which belong to their host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from llm_guard.storage.shared.exchange_store import ChangedOverride

_FORMS: dict[str, type[SavedOverride]] = {
    "silence": SavedSilence,
    "breaker": SavedBreakerOverride,
    "hold": SavedHold,
    "mode": SavedMode,
}
_ELSEWHERE = {"made": "at another gateway of the fleet"}
_YEAR_S = 366 * 86400.0
"""Instants further in the future are nonsense."""


class EndedOverride(msgspec.Struct, frozen=True):
    """Content of an override that an operator has ended."""

    who: str
    reason: str


class SharedOverrides:
    """Implements `fleet.overrides.OverrideTarget`."""

    def __init__(
        self,
        state: OperatorState,
        publish: Callable[[Mapping[str, ChangedOverride]], None],
        changes: Changes,
        clock: Clock,
    ) -> None:
        self._state = state
        self._publish = publish
        self._changes = changes
        self._clock = clock
        self._known: dict[str, SavedOverride] = {}
        """As of the last change."""

    def note_change(self, who: str, reason: str) -> None:
        """Publishes what an operator has just changed."""
        now, before = self._by_key(), self._known
        self._known = now
        changed = {key: self._changed(saved, 0.0) for key, saved in now.items() if before.get(key) != saved}
        ended = msgspec.json.encode(EndedOverride(who, reason))
        for key, saved in before.items():
            if key not in now and not self._has_expired(saved):
                changed[key] = ChangedOverride(0.0, ended, is_ended=True)
        if changed:
            self._publish(changed)

    def follow(self) -> None:
        """Takes notice of overrides that a reload has ended: each gateway ends them at its own reload."""
        self._known = self._by_key()

    def current(self) -> Mapping[str, ChangedOverride]:
        wall = self._clock.wall()
        self._known = self._by_key()
        return {key: self._changed(saved, max(0.0, wall - _since(saved, wall))) for key, saved in self._known.items()}

    def apply(self, key: str, content: bytes, *, is_ended: bool) -> bool:
        try:
            change = self._end(key, content) if is_ended else self._put(key, content)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError, RecursionError):
            return False
        self._known = self._by_key()
        if change is not None:
            who, reason, saved = change
            self._changes.note(who, _action(saved, is_ended), _target(saved), reason, _ELSEWHERE)
        return True

    def _put(self, key: str, content: bytes) -> tuple[str, str, SavedOverride] | None:
        """Returns who set it, why, and what; None if there is nothing to do. Raises ValueError if it is nonsense."""
        kind, *_ = msgspec.json.decode(key, type=list[str | None])
        saved: SavedOverride = msgspec.json.decode(content, type=_FORMS[kind or ""])
        wall = self._clock.wall()
        if _key(saved) != key or not 0 <= _since(saved, wall) <= wall + _YEAR_S:
            raise ValueError(key)
        if saved.until is not None and not 0 <= saved.until <= wall + 10 * _YEAR_S:
            raise ValueError(key)
        if self._has_expired(saved) or self._by_key().get(key) == saved:
            return None
        self._state.put(saved)
        return saved.who, saved.reason, saved

    def _end(self, key: str, content: bytes) -> tuple[str, str, SavedOverride] | None:
        ended = msgspec.json.decode(content, type=EndedOverride)
        saved = self._by_key().get(key)
        if saved is None:
            return None
        self._state.end(saved, ended.reason)
        return ended.who, ended.reason, saved

    def _by_key(self) -> dict[str, SavedOverride]:
        return {_key(saved): saved for saved in self._state.overrides()}

    def _changed(self, saved: SavedOverride, age_s: float) -> ChangedOverride:
        return ChangedOverride(age_s, msgspec.json.encode(saved), is_ended=False)

    def _has_expired(self, saved: SavedOverride) -> bool:
        return saved.until is not None and saved.until <= self._clock.wall()


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


def _since(saved: SavedOverride, wall: float) -> float:
    """Returns when it was set, in seconds since the epoch; `wall` for a silence, which does not say it."""
    return wall if isinstance(saved, SavedSilence) else saved.since


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
