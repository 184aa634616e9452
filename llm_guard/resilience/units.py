"""Units that settings are written in: durations, sizes, ratios, counts, spreads, factors, rates.

Parses `200ms`, `64MiB` or `0.2` in a config file into numbers, and checks their ranges. A settings dataclass annotates
its fields with these; pydantic finds the parser through `__get_pydantic_core_schema__`, which needs no import of
pydantic here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeGuard

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|kB|MB|GB)?")
_BYTES = {
    None: 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "kB": 1000, "MB": 1000**2, "GB": 1000**3,
}  # fmt: skip


def parse_duration(value: object) -> float:
    """Parses `200ms`, `1.5s`, `2m` or `1h` into seconds, > 0; raises ValueError."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"not a duration: {_show(value)}; write 200ms, 5s, 2m or 1h")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds <= 0 or not math.isfinite(seconds):
        raise ValueError(f"a duration must be longer than 0: {_show(value)}")
    return seconds


def parse_pause(value: object) -> float:
    """Parses a duration or `0s` into seconds, >= 0; raises ValueError."""
    return 0.0 if value in ("0ms", "0s", "0m", "0h") else parse_duration(value)


def or_none(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    """Returns a parser that turns null into None, and passes everything else to `parse`."""
    return lambda value: None if value is None else parse(value)


def parse_size(value: object) -> int:
    """Parses `64MiB`, `512KiB` or `1000` into bytes, > 0; raises ValueError."""
    match = _SIZE.fullmatch(str(value).strip()) if _is_whole(value) or isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f"not a size: {_show(value)}; write 64MiB, 512KiB or a number of bytes > 0")
    return int(match[1]) * _BYTES[match[2]]


def parse_ratio(value: object) -> float:
    """Parses a share from 0 to 1; raises ValueError."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"not a share: {_show(value)}; write a number from 0 to 1")
    return float(value)


def parse_count(value: object) -> int:
    """Parses a whole number of at least 1; raises ValueError."""
    if not _is_whole(value) or value < 1:
        raise ValueError(f"not a count: {_show(value)}; write a whole number of at least 1")
    return value


def parse_concurrency(value: object) -> int | str | None:
    """Parses a whole number of at least 1, `adaptive`, or None for no limit; raises ValueError."""
    if value is None or value == "adaptive":
        return value
    if not _is_whole(value) or value < 1:
        raise ValueError(f"not a concurrency: {_show(value)}; write a whole number of at least 1, adaptive or null")
    return value


def parse_spread(value: object) -> float | str:
    """Parses a share from 0 to 1 either way, or the name of a jitter; raises ValueError."""
    if value in ("full", "equal", "decorrelated"):
        return str(value)
    if _is_number(value) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"not a jitter: {_show(value)}; write 0.3, full, equal or decorrelated")


def at_least(lowest: float) -> Callable[[object], float]:
    """Returns a parser of finite numbers >= `lowest`; it raises ValueError."""

    def parse(value: object) -> float:
        if not _is_number(value) or not lowest <= value < math.inf:
            raise ValueError(f"not a number of at least {lowest:g}: {_show(value)}")
        return float(value)

    return parse


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Unit:
    """Annotation that makes pydantic run `parse` on a value from the config, before the type itself.

    A default that already has the target type is not parsed.
    """

    def __init__(self, parse: Callable[[object], Any]) -> None:
        self.parse = parse

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> dict[str, Any]:
        function = {"type": "no-info", "function": self.parse}
        return {"type": "function-before", "function": function, "schema": handler(source)}


Seconds = Annotated[float, Unit(parse_duration)]
Pause = Annotated[float, Unit(parse_pause)]
"""Seconds, >= 0."""
OptionalSeconds = Annotated[float | None, Unit(or_none(parse_duration))]
Size = Annotated[int, Unit(parse_size)]
OptionalSize = Annotated[int | None, Unit(or_none(parse_size))]
Ratio = Annotated[float, Unit(parse_ratio)]
Count = Annotated[int, Unit(parse_count)]
OptionalCount = Annotated[int | None, Unit(or_none(parse_count))]
Spread = Annotated[float | Literal["full", "equal", "decorrelated"], Unit(parse_spread)]
Factor = Annotated[float, Unit(at_least(1))]
Rate = Annotated[float, Unit(at_least(0))]
Concurrency = Annotated[int | Literal["adaptive"] | None, Unit(parse_concurrency)]
