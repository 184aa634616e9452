"""/admin/log-levels: log levels, changed at run time, and for a limited time if requested.

`log.levels` applies them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct, field

from llm_guard.admin.api.parameters import Duration, optional_seconds_of
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, Refused, answer
from llm_guard.clock import Clock, iso
from llm_guard.config import LogSettings
from llm_guard.log import LEVELS, LevelName, is_logger

_MOST_WORDS = 100


class LevelChange(Change, forbid_unknown_fields=True, kw_only=True):
    """A level for a logger and all loggers below it."""

    logger: Annotated[str, Meta(max_length=200)] = ""
    """Module or package of the gateway; empty: all."""
    level: LevelName | None
    """New level; null: the config's."""
    for_: Duration | None = field(name="for", default=None)
    """Duration; null: until it is changed, or the process ends."""


class LevelView(Struct, frozen=True):
    logger: str
    level: LevelName
    configured: LevelName | None
    """Level that the config sets for this very name."""
    until: str | None
    """When an operator's override ends by itself."""


@dataclass(frozen=True, slots=True)
class _Word:
    until: float
    """Monotonic instant at which it ends."""
    until_wall: float
    level: LevelName
    reason: str


class LogLevels:
    """Levels of the config, with operators' overrides. `look` must be called periodically."""

    def __init__(self, settings: LogSettings, changes: Changes, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._ends: dict[str, _Word] = {}
        self.adopt(settings)

    def adopt(self, settings: LogSettings) -> None:
        """Applies the config's levels; overrides remain."""
        LEVELS.adopt(settings.level, settings.levels)

    def look(self, now: float) -> None:
        """Ends expired overrides."""
        for name, word in list(self._ends.items()):
            if now >= word.until:
                self._say(name, None)
                detail = {"was": word.level, "level": LEVELS.of(name), "reason": word.reason}
                self._changes.note("expiry", "log-levels.reset", name or "all", "its time was over", detail)

    def close(self) -> None:
        """Ends all overrides, because another gateway may run in this process."""
        for name in list(LEVELS.overrides()):
            self._say(name, None)

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/log-levels", "From which level on lines are written.", self._list,
                 gives=list[LevelView]),
            Endpoint("POST", "/admin/log-levels", "Changes that for a module.", self._change, takes=LevelChange,
                 gives=Changed[list[LevelView]]),
        ]  # fmt: skip

    async def _list(self, _asked: AdminRequest) -> AdminResponse:
        return answer(list(self._views()))

    async def _change(self, asked: AdminRequest) -> AdminResponse:
        change: LevelChange = asked.body
        what = "log-levels.reset" if change.level is None else "log-levels.set"
        return await self._changes.make(asked, what, change.logger or "all", lambda: self._do(change))

    def _do(self, change: LevelChange) -> ChangeResult:
        name = change.logger
        if not is_logger(name):
            why = f"no module or package of the gateway is named {name!r}; such as llm_guard.proxy.attempts.release"
            raise Refused(404, "unknown_logger", why)
        if name not in LEVELS.overrides() and len(LEVELS.overrides()) >= _MOST_WORDS:
            raise Refused(409, "too_many_levels", "give some loggers back to the config: level null")
        seconds = optional_seconds_of(change.for_)
        before = LEVELS.of(name)
        self._say(name, change.level)
        if change.level is not None and seconds is not None:
            until, until_wall = self._clock.now() + seconds, self._clock.wall() + seconds
            self._ends[name] = _Word(until, until_wall, change.level, change.reason)
        return ChangeResult(list(self._views()), {"before": before, "level": change.level, "for": change.for_})

    def _say(self, name: str, level: LevelName | None) -> None:
        self._ends.pop(name, None)
        LEVELS.override(name, level)

    def _views(self) -> Iterator[LevelView]:
        configured = LEVELS.configured()
        for name in sorted({*configured, *LEVELS.overrides()}):
            word = self._ends.get(name)
            yield LevelView(name, LEVELS.of(name), configured.get(name), iso(word.until_wall) if word else None)
