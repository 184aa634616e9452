"""Minimum levels by logger name. They can change at any time (`admin.api.log_levels`).

A logger has its module's name, except for the two whose lines users filter: their names do not depend on modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

LevelName = Literal["debug", "info", "warning", "error", "critical"]

LEVEL_NUMBERS: Mapping[str, int] = MappingProxyType(
    {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
)
"""The numbers of the standard library's `logging`."""

ACCESS_LOGGER = "llm_guard.access"
"""Logs one line per call."""
BREAKER_LOGGER = "llm_guard.breaker"
"""Logs the changes of circuit breakers."""
_STABLE = (ACCESS_LOGGER, BREAKER_LOGGER)

_HERE = Path(__file__).parents[1]


class Threshold:
    """Current level of one logger: code that logs a lot reads `level` before each line without a lookup."""

    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        self.level = level


class Levels:
    """Levels by logger name or prefix; the longest match applies: `llm_guard.proxy.handler`, then
    `llm_guard.proxy`, `llm_guard`, and "" for all. For the same name an operator's override takes precedence over the
    config."""

    def __init__(self) -> None:
        self._configured: dict[str, LevelName] = {"": "info"}
        self._overrides: dict[str, LevelName] = {}
        self._thresholds: dict[str, Threshold] = {}

    def adopt(self, level: LevelName, levels: Mapping[str, LevelName]) -> None:
        """Sets the configured levels: `level` for all loggers, `levels` by name."""
        self._configured = {"": level, **levels}
        self._spread()

    def override(self, name: str, level: LevelName | None) -> None:
        """Sets an operator's override; None removes it."""
        if level is None:
            self._overrides.pop(name, None)
        else:
            self._overrides[name] = level
        self._spread()

    def threshold(self, name: str) -> Threshold:
        """Returns the logger's threshold, always the same object. Only for logger names in the code, since each stays
        in memory."""
        threshold = self._thresholds.get(name)
        if threshold is None:
            threshold = self._thresholds[name] = Threshold(LEVEL_NUMBERS[self.of(name)])
        return threshold

    def of(self, name: str) -> LevelName:
        said = {**self._configured, **self._overrides}
        while name and name not in said:
            name = name.rpartition(".")[0]
        return said[name]

    def overrides(self) -> Mapping[str, LevelName]:
        return MappingProxyType(dict(self._overrides))

    def configured(self) -> Mapping[str, LevelName]:
        return MappingProxyType(dict(self._configured))

    def _spread(self) -> None:
        for name, threshold in self._thresholds.items():
            threshold.level = LEVEL_NUMBERS[self.of(name)]


LEVELS = Levels()
"""Levels of the process, global like logging itself."""


def is_logger(name: str) -> bool:
    """True if `name` is a stable logger, or a module or package of llm_guard; "" stands for all."""
    if not name or name in _STABLE:
        return True
    if not re.fullmatch(r"llm_guard(\.[a-z_]+)*", name):
        return False
    place = _HERE.joinpath(*name.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()
