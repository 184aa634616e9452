from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import pytest

from llm_guard.outcome import FailureKind
from llm_guard.resilience.retry.backoff import BaseDelays, RetrySettings, delay_s
from llm_guard.resilience.retry.limits import FailureRate

PLAIN = RetrySettings(jitter=0.0, adaptive=False)
LAST = 1 - 2**-53
"""The largest value that a random draw can have."""

FLAPS = (
    FailureKind.NETWORK,
    FailureKind.TRUNCATED,
    FailureKind.TIMEOUT,
    FailureKind.CONNECT_TIMEOUT,
    FailureKind.RETIRED,
)


def wait(
    settings: RetrySettings,
    retry: int = 1,
    *,
    kind: FailureKind | None = FailureKind.SERVER_ERROR,
    asked: float | None = None,
    previous: float | None = None,
    u: float = 0.5,
    share: float = 0.0,
) -> float:
    return delay_s(settings, retry=retry, kind=kind, retry_after_s=asked, previous_s=previous, u=u, failure_share=share)


def test_wait_doubles_up_to_the_longest() -> None:
    assert [wait(PLAIN, n) for n in (1, 2, 3, 4, 8, 9, 50)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 25.6, 30, 30])


def test_multiplier_of_one_waits_the_same_each_time() -> None:
    assert [wait(replace(PLAIN, multiplier=1.0), n) for n in (1, 2, 2000)] == [0.2, 0.2, 0.2]


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0, "full", "equal"])
def test_two_thousandth_retry_does_not_overflow(jitter: float | Literal["full", "equal"]) -> None:
    settings = RetrySettings(jitter=jitter, multiplier=10.0)
    assert wait(settings, 2000, u=LAST) == pytest.approx(30.0)


def test_share_spreads_to_both_sides() -> None:
    settings = RetrySettings(jitter=0.3)
    assert wait(settings, 2, u=0.0) == pytest.approx(0.28)
    assert wait(settings, 2, u=0.5) == pytest.approx(0.4)
    assert wait(settings, 2, u=LAST) == pytest.approx(0.52)


def test_share_spreads_below_the_longest_wait_instead_of_piling_up_on_it() -> None:
    waits = [wait(RetrySettings(jitter=0.3), 20, u=i / 100) for i in range(100)]
    assert len(set(waits)) == 100
    assert max(waits) <= 30


def test_rounding_does_not_lift_a_spread_wait_above_the_longest() -> None:
    assert max(wait(RetrySettings(jitter=i / 1000), 20, u=LAST) for i in range(1001)) <= 30


def test_full_jitter_spreads_from_nothing() -> None:
    settings = RetrySettings(jitter="full")
    assert [wait(settings, 3, u=u) for u in (0.0, 0.5)] == pytest.approx([0.0, 0.4])
    assert wait(settings, 3, u=LAST) == pytest.approx(0.8)


def test_equal_jitter_is_at_least_half() -> None:
    settings = RetrySettings(jitter="equal")
    assert [wait(settings, 3, u=u) for u in (0.0, 0.5, LAST)] == pytest.approx([0.4, 0.6, 0.8])


def test_decorrelated_jitter_grows_from_the_previous_wait() -> None:
    settings = RetrySettings(jitter="decorrelated")
    assert wait(settings, 1, u=LAST) == pytest.approx(0.6)
    assert wait(settings, 2, previous=1.0, u=0.0) == pytest.approx(0.2)
    assert wait(settings, 2, previous=1.0, u=0.5) == pytest.approx(1.6)
    assert wait(settings, 9, previous=29.0, u=0.9) == 30.0


def test_decorrelated_jitter_stays_above_the_base_after_an_immediate_retry() -> None:
    assert wait(RetrySettings(jitter="decorrelated"), 2, previous=0.01, u=0.9) >= 0.2


@pytest.mark.parametrize("kind", FLAPS)
def test_first_retry_after_a_flap_is_immediate(kind: FailureKind) -> None:
    assert wait(PLAIN, 1, kind=kind, u=0.0) == 0.0
    assert wait(PLAIN, 1, kind=kind, u=0.5) == pytest.approx(0.025)
    assert wait(PLAIN, 1, kind=kind, u=LAST) <= 0.05
    assert wait(PLAIN, 2, kind=kind) == pytest.approx(0.4)


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind not in FLAPS])
def test_first_retry_after_anything_else_waits(kind: FailureKind) -> None:
    assert wait(PLAIN, 1, kind=kind) == pytest.approx(0.2)


def test_immediate_first_retry_can_be_switched_off() -> None:
    assert wait(replace(PLAIN, immediate_first=False), 1, kind=FailureKind.NETWORK) == pytest.approx(0.2)


def test_immediate_retry_preserves_a_shorter_longest_wait() -> None:
    assert wait(replace(PLAIN, max_delay=0.01), 1, kind=FailureKind.NETWORK, u=LAST) <= 0.01


def test_retry_after_is_a_floor_with_a_spread_above() -> None:
    assert wait(PLAIN, asked=20.0, u=0.0) == 20.0
    assert wait(PLAIN, asked=20.0, u=0.5) == pytest.approx(21.0)
    assert wait(PLAIN, asked=20.0, u=LAST) == pytest.approx(22.0)


def test_retry_after_does_not_shorten_the_backoff() -> None:
    assert wait(PLAIN, 6, asked=0.1) == pytest.approx(6.4)


def test_retry_after_may_exceed_the_longest_wait() -> None:
    assert wait(PLAIN, asked=90.0, u=0.0) == 90.0


def test_retry_after_holds_for_an_immediate_retry_too() -> None:
    assert wait(PLAIN, 1, kind=FailureKind.NETWORK, asked=2.0, u=0.0) == 2.0


@pytest.mark.parametrize("jitter", [0.0, 0.3, "full", "equal", "decorrelated"])
def test_wait_grows_with_the_recent_failure_share(jitter: float | Literal["full", "equal", "decorrelated"]) -> None:
    settings = RetrySettings(jitter=jitter)
    assert wait(settings, 2, share=0.4) == pytest.approx(1.16 * wait(settings, 2))
    assert wait(settings, 2, share=1.0) == pytest.approx(2 * wait(settings, 2))
    fixed = replace(settings, adaptive=False)
    assert wait(fixed, 2, share=1.0) == wait(settings, 2)


@pytest.mark.parametrize("jitter", [0.0, 0.3, "full", "equal", "decorrelated"])
def test_grown_wait_is_no_longer_than_the_longest(jitter: float | Literal["full", "equal", "decorrelated"]) -> None:
    settings = RetrySettings(jitter=jitter, base_delay=20.0)
    assert wait(settings, 3, previous=29.0, u=LAST, share=1.0) == pytest.approx(30.0)


def test_immediate_retry_stays_immediate_however_much_fails() -> None:
    assert wait(RetrySettings(), 1, kind=FailureKind.NETWORK, u=LAST, share=1.0) <= 0.05


def test_base_is_chosen_by_category_where_one_is_set() -> None:
    settings = replace(PLAIN, base_delays=BaseDelays(rate_limit=1.0, overloaded=0.5, network=0.1))
    waits = {kind: wait(settings, 2, kind=kind) for kind in FailureKind}
    expected = {"rate_limit": 2.0, "overloaded": 1.0, "network": 0.2}
    assert waits == pytest.approx({kind: expected.get(kind.category, 0.4) for kind in FailureKind})
    assert wait(replace(settings, adaptive=True), 2, kind=FailureKind.RATE_LIMIT, share=0.5) == pytest.approx(2.5)
    one = replace(PLAIN, base_delays=BaseDelays(rate_limit=1.0))
    assert wait(one, 1, kind=FailureKind.OVERLOADED) == pytest.approx(0.2)


def test_base_of_a_category_is_capped_like_any_other() -> None:
    settings = RetrySettings(max_delay=2.0, base_delays=BaseDelays(rate_limit=5.0))
    assert wait(settings, 1, kind=FailureKind.RATE_LIMIT, u=LAST) == pytest.approx(2.0)


def test_retry_of_something_that_is_no_call_waits_the_base() -> None:
    settings = replace(PLAIN, base_delays=BaseDelays(1.0, 1.0, 1.0))
    assert [wait(settings, n, kind=None) for n in (1, 2)] == pytest.approx([0.2, 0.4])


def test_four_attempts_in_a_brownout_wait_less_than_2300_ms_in_99_of_100_calls() -> None:
    """40 % of attempts fail with 503. The waits of each call are summed, including calls that fail in the end."""
    dice = random.Random(7)
    recent = FailureRate(0.0)
    sums = []
    for i in range(20_000):
        waited_s, retry, now = 0.0, 0, i / 100
        while dice.random() < 0.4:
            recent.note(True, now)
            retry += 1
            if retry == 4:
                break
            share = recent.failure_share(now)
            waited_s += wait(RetrySettings(), retry, kind=FailureKind.OVERLOADED, u=dice.random(), share=share)
        else:
            recent.note(False, now)
        sums.append(waited_s)
    assert sorted(sums)[int(0.99 * len(sums))] < 2.3
