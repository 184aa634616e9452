"""Where log lines go, which of them, and what they look like.

writer    to standard output, by a thread of its own
levels    from which level on, by the logger's name
console   for people, where the config says so; else a line is one JSON object
"""

from __future__ import annotations

from llm_guard.log.console import printable
from llm_guard.log.levels import LEVEL_NUMBERS, LEVELS, LevelName, Levels, Threshold, is_logger
from llm_guard.log.writer import LogFormat, LogWriter, configure_logging, direct_writer, to_line

__all__ = [
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
