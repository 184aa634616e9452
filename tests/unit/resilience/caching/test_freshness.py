from __future__ import annotations

import pytest

from llm_guard.resilience.caching.freshness import (
    CacheControl,
    CacheSettings,
    judge,
    lasts_s,
    may_serve_stale,
    parse_cache_control,
)

RULES = CacheSettings(ttl=10.0, stale_while_revalidate=5.0, stale_if_error=20.0)


@pytest.mark.parametrize(
    ("said", "wishes"),
    [
        ("", CacheControl()),
        ("private, max-stale=9", CacheControl()),
        ("no-store", CacheControl(is_stored=False)),
        ("No-Cache", CacheControl(no_cache=True)),
        ("max-age=0", CacheControl(no_cache=True, max_age=0.0)),
        ("max-age=30", CacheControl(max_age=30.0)),
        ('max-age="30"', CacheControl(max_age=30.0)),
        ("max-age=soon", CacheControl(no_cache=True, max_age=0.0)),
        ("max-age", CacheControl(no_cache=True, max_age=0.0)),
        ("max-age=-1", CacheControl(no_cache=True, max_age=0.0)),
        ("max-age=" + "9" * 5000, CacheControl(max_age=float("9" * 15))),
        ("min-fresh=5, only-if-cached", CacheControl(min_fresh=5.0, only_if_cached=True)),
        ("min-fresh=soon", CacheControl(min_fresh=float("inf"))),
        (" no-store ,, no-cache", CacheControl(is_stored=False, no_cache=True)),
        ("max-age=\u0663", CacheControl(no_cache=True, max_age=0.0)),
    ],
)
def test_request_directives_are_parsed(said: str, wishes: CacheControl) -> None:
    assert parse_cache_control(said) == wishes


@pytest.mark.parametrize(
    ("age_s", "said", "verdict"),
    [
        (0, "", "hit"),
        (10, "", "hit"),
        (10.1, "", "stale"),
        (15, "", "stale"),
        (15.1, "", "miss"),
        (5, "max-age=5", "hit"),
        (5.1, "max-age=5", "miss"),
        (11, "max-age=60", "miss"),
        (5, "min-fresh=5", "hit"),
        (5.1, "min-fresh=5", "miss"),
        (11, "min-fresh=1", "miss"),
        (0, "no-cache", "miss"),
        (11, "only-if-cached", "stale"),
    ],
)
def test_age_decides_the_freshness_of_a_response(age_s: float, said: str, verdict: str) -> None:
    assert judge(age_s, RULES, parse_cache_control(said)) == verdict


def test_stale_response_is_served_as_long_as_its_route_allows() -> None:
    assert may_serve_stale(30, RULES)
    assert not may_serve_stale(30.1, RULES)
    assert not may_serve_stale(1, CacheSettings(ttl=10.0))


def test_answer_lasts_as_long_as_it_is_of_any_use() -> None:
    assert lasts_s(RULES) == 30
    assert lasts_s(CacheSettings(ttl=10.0, stale_while_revalidate=5.0)) == 15
    assert lasts_s(CacheSettings(ttl=10.0)) == 10
