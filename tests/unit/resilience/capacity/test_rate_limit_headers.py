from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow, rate_hint

WALL = 1_767_225_600.0  # 2026-01-01T00:00:00Z
MINUTE = "2026-01-01T00:01:00Z"


def only(headers: dict[str, str]) -> RateLimitWindow:
    hint = rate_hint(headers, WALL)
    assert hint is not None
    (window,) = hint.windows
    return window


def seen(headers: dict[str, str]) -> tuple[bool, float, float, float]:
    window = only(headers)
    return window.is_tokens, window.limit, window.remaining, window.refill_per_s


def test_openai() -> None:
    hint = rate_hint(
        {
            "content-type": "application/json",
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        WALL,
    )
    assert hint == RateHint(
        (
            RateLimitWindow("x-ratelimit-remaining-requests", False, 60.0, 59.0, 1.0, 1.0),
            RateLimitWindow("x-ratelimit-remaining-tokens", True, 150_000.0, 149_984.0, 16 / 360, 360.0),
        )
    )


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(
            {
                "anthropic-ratelimit-input-tokens-limit": "40000",
                "anthropic-ratelimit-input-tokens-remaining": "10000",
                "anthropic-ratelimit-input-tokens-reset": MINUTE,
            },
            (True, 40_000, 10_000, 500),
            id="anthropic",
        ),
        pytest.param(
            {
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "20",
                "anthropic-ratelimit-requests-reset": MINUTE,
                "date": "Thu, 01 Jan 2026 00:00:30 GMT",
            },
            (False, 50, 20, 1),
            id="its own clock",
        ),
        pytest.param(
            {
                "x-ratelimit-limit-requests": "14400",
                "x-ratelimit-remaining-requests": "14370",
                "x-ratelimit-reset-requests": "2m59.56s",
            },
            (False, 14_400, 14_370, 30 / 179.56),
            id="groq",
        ),
        pytest.param(
            {
                "x-ratelimit-limit-requests": "100",
                "x-ratelimit-remaining-requests": "40",
                "x-ratelimit-reset-requests": "30",
            },
            (False, 100, 40, 2),
            id="azure",
        ),
        pytest.param(
            {"x-ratelimit-limit-req-minute": "30", "x-ratelimit-remaining-req-minute": "3"},
            (False, 30, 3, 0.5),
            id="mistral",
        ),
        pytest.param(
            {"x-ratelimitbysize-limit-minute": "600000", "x-ratelimitbysize-remaining-minute": "1"},
            (True, 600_000, 1, 10_000),
            id="mistral by size",
        ),
        pytest.param(
            {
                "x-ratelimit-limit": "20",
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": "1767225660000",
            },
            (False, 20, 0, 1 / 3),
            id="openrouter, epoch in milliseconds",
        ),
        pytest.param(
            {"ratelimit-limit": "10, 10;w=1", "ratelimit-remaining": "5", "ratelimit-reset": "5"},
            (False, 10, 5, 1),
            id="draft-03",
        ),
        pytest.param({"ratelimit": "limit=100, remaining=50, reset=5"}, (False, 100, 50, 10), id="draft-07"),
        pytest.param(
            {"ratelimit": '"default";r=50;t=30', "ratelimit-policy": '"default";q=110;w=60'},
            (False, 110, 50, 2),
            id="draft-08",
        ),
        pytest.param(
            {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "60"},
            (False, 60, 60, 0),
            id="full",
        ),
    ],
)
def test_window(headers: dict[str, str], expected: tuple[bool, float, float, float]) -> None:
    assert seen(headers) == pytest.approx(expected)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/event-stream", "retry-after": "3"},
        {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "3"},
        {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "1s"},
        {"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "3"},
        {"x-ratelimit-limit-tokens": "0", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "3"},
        {"x-ratelimit-limit-tokens": "5", "x-ratelimit-remaining-tokens": "6", "x-ratelimit-reset-tokens": "3"},
        {"x-ratelimit-limit-tokens": "NaN", "x-ratelimit-remaining-tokens": "6", "x-ratelimit-reset-tokens": "3"},
        {"x-ratelimit-limit-tokens": "9", "x-ratelimit-remaining-tokens": "6", "x-ratelimit-reset-tokens": "soon"},
        {"anthropic-ratelimit-unified-5h-utilization": "0.9", "anthropic-ratelimit-unified-status": "allowed"},
        {"ratelimit": '"default";r=50;t=30'},
        {"ratelimit": "nonsense"},
        {"ratelimit": "limit=100, remaining=50, reset=0"},
    ],
)
def test_incomplete_headers_are_no_hint(headers: dict[str, str]) -> None:
    assert rate_hint(headers, WALL) is None


def test_number_of_windows_is_bounded() -> None:
    headers: dict[str, str] = {}
    for i in range(100):
        headers |= {f"x-ratelimit-limit-{i}": "9", f"x-ratelimit-remaining-{i}": "3", f"x-ratelimit-reset-{i}": "3"}
    hint = rate_hint(headers, WALL)
    assert hint is not None
    assert len(hint.windows) == 8
