"""Headers that say a window is empty hold calls back only while the answers agree with them."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.header_rate import HeaderRate
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, rate_hint

DAY = {
    "x-ratelimit-limit-requests": "100",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "24h0m0s",
}


def hint(**changed: str) -> RateHint:
    found = rate_hint(DAY | {f"x-ratelimit-{name}-requests": value for name, value in changed.items()}, 0.0)
    assert found is not None
    return found


def accept(header: HeaderRate, calls: int, in_flight: int = 0) -> list[bool]:
    """Whether the rate is limited after each of the answers, one in ten seconds."""
    limited = []
    for number in range(1, calls + 1):
        now = 10.0 * number
        header.note(hint(), 1, in_flight, number, now, now)
        limited.append(header.rate is not None)
    return limited


def test_header_of_an_empty_window_is_ignored_while_calls_are_accepted() -> None:
    header = HeaderRate(0.0)
    assert accept(header, 12) == [True] * 4 + [False] * 8
    header.note(hint(remaining="2"), 1, 0, 13, 130.0, 130.0)
    assert header.rate is not None
    header.note(hint(), 1, 0, 14, 140.0, 140.0)
    assert header.rate is not None


def test_calls_that_were_in_flight_refute_no_window() -> None:
    assert accept(HeaderRate(0.0), 12, in_flight=9) == [True] * 12


@pytest.mark.parametrize("reset", ["60s", "1m0s"])
def test_calls_that_are_accepted_as_a_window_refills_refute_nothing(reset: str) -> None:
    header = HeaderRate(0.0)
    for number in range(1, 200):
        now = number * 0.6
        header.note(hint(reset=reset), 1, 0, number, now, now)
        assert header.rate is not None
