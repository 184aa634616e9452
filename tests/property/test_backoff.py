from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.outcome import FailureKind
from llm_guard.resilience.retry.backoff import IMMEDIATE_S, BaseDelays, RetrySettings, delay_s
from tests.effort import repeated

draws = st.floats(0, 1, exclude_max=True)
seconds = st.floats(1e-3, 1e5)
shares = st.floats(0, 1)
retry_settings = st.builds(
    RetrySettings,
    base_delay=seconds,
    multiplier=st.floats(1, 1e6),
    max_delay=seconds,
    jitter=st.floats(0, 1) | st.sampled_from(["full", "equal", "decorrelated"]),
    immediate_first=st.booleans(),
    adaptive=st.booleans(),
    base_delays=st.builds(BaseDelays, st.none() | seconds, st.none() | seconds, st.none() | seconds),
)
retries = st.integers(1, 5) | st.integers(1, 10**6)
kinds = st.none() | st.sampled_from(FailureKind)


@settings(derandomize=True, deadline=None, max_examples=repeated(500))
@given(retry_settings, retries, kinds, st.none() | seconds, draws, shares)
def test_own_wait_stays_between_nothing_and_the_longest(
    chosen: RetrySettings, retry: int, kind: FailureKind | None, previous_s: float | None, u: float, share: float
) -> None:
    wait_s = delay_s(
        chosen, retry=retry, kind=kind, retry_after_s=None, previous_s=previous_s, u=u, failure_share=share
    )
    assert 0 <= wait_s <= chosen.max_delay


@settings(derandomize=True, deadline=None, max_examples=repeated(500))
@given(retry_settings, retries, kinds, seconds, st.none() | seconds, draws, shares)
def test_wait_never_undercuts_retry_after_nor_exceeds_it_by_more_than_a_tenth(
    chosen: RetrySettings,
    retry: int,
    kind: FailureKind | None,
    asked_s: float,
    previous_s: float | None,
    u: float,
    share: float,
) -> None:
    wait_s = delay_s(
        chosen, retry=retry, kind=kind, retry_after_s=asked_s, previous_s=previous_s, u=u, failure_share=share
    )
    assert asked_s <= wait_s <= max(chosen.max_delay, asked_s * 1.1)


@settings(derandomize=True, deadline=None, max_examples=repeated(300))
@given(retry_settings, retries, st.floats(0, 1), draws, shares)
def test_jitter_stays_within_bounds_of_the_exponential_wait(
    chosen: RetrySettings, retry: int, spread: float, u: float, share: float
) -> None:
    proportional = RetrySettings(base_delay=chosen.base_delay, multiplier=2, max_delay=chosen.max_delay, jitter=spread)
    kind = FailureKind.SERVER_ERROR
    wait_s = delay_s(
        proportional, retry=retry, kind=kind, retry_after_s=None, previous_s=None, u=u, failure_share=share
    )
    grown_s = chosen.base_delay * (1 + share**2) * 2.0 ** min(retry - 1, 1000)
    middle_s = min(grown_s, chosen.max_delay / (1 + spread))
    assert middle_s * (1 - spread) * 0.999999 <= wait_s <= middle_s * (1 + spread) * 1.000001


@settings(derandomize=True, deadline=None, max_examples=repeated(300))
@given(retry_settings, retries, kinds, st.none() | seconds, draws, draws, shares, shares)
def test_wait_grows_with_the_draw_and_with_the_failure_share(
    chosen: RetrySettings,
    retry: int,
    kind: FailureKind | None,
    previous_s: float | None,
    u: float,
    other_u: float,
    share: float,
    other_share: float,
) -> None:
    def wait_s(u: float, share: float) -> float:
        return delay_s(
            chosen, retry=retry, kind=kind, retry_after_s=None, previous_s=previous_s, u=u, failure_share=share
        )

    low_u, high_u = sorted((u, other_u))
    low_share, high_share = sorted((share, other_share))
    slack = 1 + 1e-9
    assert wait_s(low_u, share) <= wait_s(high_u, share) * slack
    assert wait_s(u, low_share) <= wait_s(u, high_share) * slack <= 2 * wait_s(u, low_share) * slack**2
    assert chosen.adaptive or wait_s(u, low_share) == wait_s(u, high_share)


@settings(derandomize=True, deadline=None, max_examples=repeated(200))
@given(retry_settings, st.sampled_from([FailureKind.NETWORK, FailureKind.TRUNCATED, FailureKind.TIMEOUT]), draws)
def test_immediate_retry_is_immediate_for_any_jitter(chosen: RetrySettings, kind: FailureKind, u: float) -> None:
    wait_s = delay_s(chosen, retry=1, kind=kind, retry_after_s=None, previous_s=None, u=u)
    assert not chosen.immediate_first or wait_s <= IMMEDIATE_S
