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
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.clock import Clock, iso
from llm_guard.config import Config
from llm_guard.log import LEVELS, LevelName, is_logger

_MOST_OVERRIDES = 100


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
class _Override:
    until: float
    """Monotonic instant at which it ends."""
    until_wall: float
    level: LevelName
    reason: str


class LogLevels(EndpointGroup):
    """Levels of the config, with operators' overrides. `look` must be called periodically."""

    def __init__(self, config: Config, changes: Changes, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._ends: dict[str, _Override] = {}
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the config's levels; overrides remain."""
        LEVELS.adopt(config.ops.log.level, config.ops.log.levels)

    def look(self, now: float) -> None:
        """Ends expired overrides."""
        for name, override in list(self._ends.items()):
            if now >= override.until:
                self._set(name, None)
                detail = {"was": override.level, "level": LEVELS.of(name), "reason": override.reason}
                self._changes.note("expiry", "log-levels.reset", name or "all", "the override expired", detail)

    def close(self) -> None:
        """Ends all overrides, because another gateway may run in this process."""
        for name in list(LEVELS.overrides()):
            self._set(name, None)

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/log-levels", "Lists the log levels.", self._list,
                 gives=list[LevelView]),
            Endpoint("POST", "/admin/log-levels", "Sets the level of a logger.", self._change, takes=LevelChange,
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
            names = "llm_guard.access, llm_guard.breaker, or a module or package of llm_guard"
            raise Refused(404, "unknown_logger", f"no logger is named {name!r}: give {names}")
        if name not in LEVELS.overrides() and len(LEVELS.overrides()) >= _MOST_OVERRIDES:
            raise Refused(
                409,
                "too_many_levels",
                f"there are already {_MOST_OVERRIDES} overrides: remove some by setting their level to null",
            )
        seconds = optional_seconds_of(change.for_)
        before = LEVELS.of(name)
        self._set(name, change.level)
        if change.level is not None and seconds is not None:
            until, until_wall = self._clock.now() + seconds, self._clock.wall() + seconds
            self._ends[name] = _Override(until, until_wall, change.level, change.reason)
        return ChangeResult(list(self._views()), {"before": before, "level": change.level, "for": change.for_})

    def _set(self, name: str, level: LevelName | None) -> None:
        self._ends.pop(name, None)
        LEVELS.override(name, level)

    def _views(self) -> Iterator[LevelView]:
        configured = LEVELS.configured()
        for name in sorted({*configured, *LEVELS.overrides()}):
            override = self._ends.get(name)
            yield LevelView(name, LEVELS.of(name), configured.get(name), iso(override.until_wall) if override else None)
