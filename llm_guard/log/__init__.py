"""Logging: destination, levels and format.

writer    writes to standard output in its own thread
levels    minimum level by logger name
console   format for people, if configured; otherwise each line is a JSON object
"""

from __future__ import annotations

from llm_guard.log.console import printable
from llm_guard.log.levels import (
    ACCESS_LOGGER,
    BREAKER_LOGGER,
    LEVEL_NUMBERS,
    LEVELS,
    LevelName,
    Levels,
    Threshold,
    is_logger,
)
from llm_guard.log.writer import LogFormat, LogWriter, configure_logging, direct_writer, to_line

__all__ = [
    "ACCESS_LOGGER",
    "BREAKER_LOGGER",
    "LEVELS",
    "LEVEL_NUMBERS",
    "LevelName",
    "Levels",
    "LogFormat",
    "LogWriter",
    "Threshold",
    "configure_logging",
    "direct_writer",
    "is_logger",
    "printable",
    "to_line",
]
