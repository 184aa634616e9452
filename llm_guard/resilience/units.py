"""Units that settings are written in: durations, sizes, ratios, counts, spreads, factors, rates.

Parses `200ms`, `64MiB` or `0.2` in a config file into numbers, and checks their ranges. A settings dataclass annotates
its fields with these; pydantic finds the parser through `__get_pydantic_core_schema__`, which needs no import of
pydantic here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
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

    A default that already has the target type is not parsed. `written`: the JSON Schema of the value in the file.
    """

    def __init__(self, parse: Callable[[object], Any], written: Mapping[str, Any]) -> None:
        self.parse = parse
        self.written = written

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> dict[str, Any]:
        function = {"type": "no-info", "function": self.parse}
        return {"type": "function-before", "function": function, "schema": handler(source)}

    def __get_pydantic_json_schema__(self, schema: object, handler: Callable[[object], Any]) -> dict[str, Any]:
        return dict(self.written)


def nullable(written: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of the same value or null."""
    return {"anyOf": [written, {"type": "null"}]}


def number_from(lowest: float) -> dict[str, Any]:
    """Returns the JSON Schema of `at_least`."""
    return {"type": "number", "minimum": lowest}


_POSITIVE = r"(?:0*[1-9]\d*(?:\.\d+)?|0+\.0*[1-9]\d*)\s*(?:ms|s|m|h)"
DURATION = {"type": "string", "pattern": rf"^\s*{_POSITIVE}\s*$"}
_PAUSE = {"type": "string", "pattern": rf"^(?:0(?:ms|s|m|h)|\s*{_POSITIVE}\s*)$"}
_SIZES = "|".join(unit for unit in _BYTES if unit is not None)
_SIZE_WRITTEN = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": rf"^\s*0*[1-9]\d*\s*(?:{_SIZES})?\s*$"},
    ]
}
RATIO = {"type": "number", "minimum": 0, "maximum": 1}
_COUNT = {"type": "integer", "minimum": 1}

Seconds = Annotated[float, Unit(parse_duration, DURATION)]
Pause = Annotated[float, Unit(parse_pause, _PAUSE)]
"""Seconds, >= 0."""
OptionalSeconds = Annotated[float | None, Unit(or_none(parse_duration), nullable(DURATION))]
Size = Annotated[int, Unit(parse_size, _SIZE_WRITTEN)]
OptionalSize = Annotated[int | None, Unit(or_none(parse_size), nullable(_SIZE_WRITTEN))]
Ratio = Annotated[float, Unit(parse_ratio, RATIO)]
Count = Annotated[int, Unit(parse_count, _COUNT)]
OptionalCount = Annotated[int | None, Unit(or_none(parse_count), nullable(_COUNT))]
Spread = Annotated[
    float | Literal["full", "equal", "decorrelated"],
    Unit(parse_spread, {"anyOf": [RATIO, {"enum": ["full", "equal", "decorrelated"]}]}),
]
Factor = Annotated[float, Unit(at_least(1), number_from(1))]
Rate = Annotated[float, Unit(at_least(0), number_from(0))]
Concurrency = Annotated[
    int | Literal["adaptive"] | None,
    Unit(parse_concurrency, {"anyOf": [_COUNT, {"const": "adaptive"}, {"type": "null"}]}),
]
