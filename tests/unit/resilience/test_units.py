from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from llm_guard.resilience import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("5s", 5.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), (" 5 s ", 5.0)],
)
def test_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [5, 5.0, True, None, "5", "s", "-5s", "5 d", "1m30s", "1e3s", "5s5s", [], ""])
def test_duration_without_unit_or_form_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a duration: .*; write 200ms, 5s, 2m or 1h"):
        units.parse_duration(value)


@pytest.mark.parametrize("value", ["0s", "0.0ms", "9" * 400 + "s"])
def test_duration_of_nothing_or_of_eternity_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="duration must be longer than 0"):
        units.parse_duration(value)


@pytest.mark.parametrize(
    ("value", "size"),
    [(1000, 1000), ("1000", 1000), ("1B", 1), ("512KiB", 524_288), ("64MiB", 67_108_864), ("1GiB", 2**30),
     ("2kB", 2000), ("2 MB", 2_000_000), ("1GB", 10**9)],
)  # fmt: skip
def test_size_is_read_in_bytes(value: object, size: int) -> None:
    assert units.parse_size(value) == size


@pytest.mark.parametrize("value", [0, "0", "0MiB", -1, "-1", 1.5, "1.5MiB", True, None, "64mib", "MiB"])
def test_other_sizes_are_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a size: .*; write 64MiB, 512KiB or a number of bytes > 0"):
        units.parse_size(value)


@pytest.mark.parametrize("value", [0, 0.2, 1])
def test_ratio_is_a_share(value: float) -> None:
    assert units.parse_ratio(value) == value


@pytest.mark.parametrize("value", [-0.1, 1.01, math.nan, math.inf, True, "0.5", None])
def test_other_ratios_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a share: .*; write a number from 0 to 1"):
        units.parse_ratio(value)


@pytest.mark.parametrize("value", [1, 5, 10**6])
def test_count_is_a_whole_number(value: int) -> None:
    assert units.parse_count(value) == value


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_other_counts_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a count: .*; write a whole number of at least 1"):
        units.parse_count(value)


@pytest.mark.parametrize("value", [0, 0.3, 1, "full", "equal", "decorrelated"])
def test_spread_is_a_share_or_a_name(value: object) -> None:
    assert units.parse_spread(value) == value


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, True, "Full", "0.3", None, ["full"]])
def test_other_spreads_are_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a jitter: .*; write 0\.3, full, equal or decorrelated"):
        units.parse_spread(value)


def test_number_has_a_lowest_value_and_is_finite() -> None:
    parse = units.at_least(1)
    assert parse(1) == 1.0
    assert parse(2.5) == 2.5
    for value in (0.99, math.inf, math.nan, True, "2", None):
        with pytest.raises(ValueError, match="not a number of at least 1: "):
            parse(value)


def test_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ValueError, match="not a duration") as caught:
        units.parse_duration("x" * 1000)
    assert len(str(caught.value)) < 120


@dataclass(frozen=True, slots=True)
class _Settings:
    wait: units.Seconds = 5.0
    body: units.Size = 10
    share: units.Ratio = 0.2
    attempts: units.Count = 3
    spread: units.Spread = 0.3
    growth: units.Factor = 2.0
    rate: units.Rate = 10.0
    limit: units.Seconds | None = None
    more: list[units.Seconds] = field(default_factory=list)


def _read(**values: object) -> _Settings:
    return TypeAdapter(_Settings).validate_python(values)


def test_pydantic_reads_a_settings_dataclass_by_its_units() -> None:
    assert _read() == _Settings()
    written: dict[str, Any] = {
        "wait": "200ms", "body": "1KiB", "share": 1, "attempts": 1, "spread": "full", "growth": 1, "rate": 0,
        "limit": "1m", "more": ["1s", "2s"],
    }  # fmt: skip
    assert _read(**written) == _Settings(0.2, 1024, 1.0, 1, "full", 1.0, 0.0, 60.0, [1.0, 2.0])
    assert _read(limit=None).limit is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("wait", 5, "not a duration: 5; write 200ms"),
        ("share", 2, "not a share: 2"),
        ("spread", "ful", "not a jitter: 'ful'; write 0.3, full"),
        ("growth", 0.5, "not a number of at least 1: 0.5"),
        ("rate", -1, "not a number of at least 0: -1"),
    ],
)
def test_pydantic_names_the_key_and_passes_the_message_on(key: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _read(**{key: value})
    (error,) = caught.value.errors()
    assert error["loc"] == (key,)
    assert message in error["msg"]
