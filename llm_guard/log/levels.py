"""From which level on lines are written, by the logger's name, which is its module's.

Owns the choice, and that it may change at any moment. Does not own who may change it (`ops.log_levels`).
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
"""As in the standard library's `logging`."""

_HERE = Path(__file__).parents[1]


class Threshold:
    """One logger's, kept up to date: who writes many lines reads `level` before each, and looks nothing up."""

    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        self.level = level


class Levels:
    """What holds for a logger is said of its own name, or of the nearest above it: `llm_guard.gateway.settle`, then
    `llm_guard.gateway`, `llm_guard`, and "" for all. An operator's word goes before the config's on the same name."""

    def __init__(self) -> None:
        self._configured: dict[str, LevelName] = {"": "info"}
        self._overrides: dict[str, LevelName] = {}
        self._thresholds: dict[str, Threshold] = {}

    def adopt(self, level: LevelName, levels: Mapping[str, LevelName]) -> None:
        """The config's word: `level` for all loggers, `levels` by name."""
        self._configured = {"": level, **levels}
        self._spread()

    def override(self, name: str, level: LevelName | None) -> None:
        """An operator's word; None takes it back."""
        if level is None:
            self._overrides.pop(name, None)
        else:
            self._overrides[name] = level
        self._spread()

    def threshold(self, name: str) -> Threshold:
        """Of the logger of that name: the same object each time. To be called with names that stand in the code."""
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
"""Of the process, as logging is."""


def is_logger(name: str) -> bool:
    """Whether `name` is a module or a package of this one; "" stands for all."""
    if not name:
        return True
    if not re.fullmatch(r"llm_guard(\.[a-z_]+)*", name):
        return False
    place = _HERE.joinpath(*name.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()
