"""Memory of a small quota after its rate was forgotten."""

from __future__ import annotations

from llm_guard.resilience.capacity.known_quota import KnownQuota
from llm_guard.resilience.capacity.pacing import Pace, Pacer
from llm_guard.resilience.capacity.settings import CapacitySettings

QUOTA = 3 / 60


def test_429_after_as_many_calls_as_the_quota_allows_is_due_to_it() -> None:
    known = KnownQuota()
    assert known.recall(QUOTA, 0.0) is None
    known.note(QUOTA, 0.0)
    assert known.recall(QUOTA, 899.0) == QUOTA
    assert known.recall(5 / 60, 899.0) == QUOTA
    assert known.recall(QUOTA, 900.0) is None


def test_429_after_far_fewer_or_more_calls_is_due_to_something_else() -> None:
    """Otherwise the first 429 of a storm would set the pace of a quota that has grown or never was."""
    known = KnownQuota()
    known.note(QUOTA, 0.0)
    assert known.recall(2 / 60, 60.0) is None
    assert known.recall(0.5, 60.0) is None


def test_minute_without_accepted_calls_shows_no_quota() -> None:
    known = KnownQuota()
    known.note(QUOTA, 0.0)
    known.note(0.0, 10.0)
    assert known.recall(QUOTA, 20.0) == QUOTA
    assert known.recall(0.0, 20.0) is None


def test_429s_that_name_the_instant_of_a_renewal_show_the_quota() -> None:
    known = KnownQuota()
    known.begin_row(QUOTA)
    assert not known.is_spent(0.0)
    known.note_renewal(40.0, 0.0)
    assert known.is_spent(0.0)
    known.begin_row(1 / 60)
    assert not known.is_spent(60.0)


def test_wait_for_less_than_one_call_shows_no_quota() -> None:
    """A bucket that holds one call of 15 a minute refuses calls that come together, at any rate: taken for a quota of 8
    a minute, half of it would be used."""
    known = KnownQuota()
    known.begin_row(8 / 60)
    known.note_renewal(4.0, 0.0)
    assert not known.is_spent(0.0)


def test_rate_of_many_calls_is_no_small_quota() -> None:
    known = KnownQuota()
    known.begin_row(1.0)
    known.note_renewal(40.0, 0.0)
    assert not known.is_spent(0.0)


def test_one_429_of_a_known_quota_holds_all_calls_until_its_renewal() -> None:
    pace, settings = Pace(0.0), CapacitySettings()
    for window in (0.0, 600.0):
        for second in (1.0, 2.0, 3.0):
            pace.take(settings, 0, window + second)
            pace.note_accepted(window + second, settings, 0, window + second, is_ok=True)
        for second in (10.0, 20.0):
            if pace.hold_opens_at() <= window + second:
                pace.take(settings, 0, window + second)
                pace.note_rate_limited(window + second, settings, window + second, has_waited=False)
                pace.note_retry_after(window + 60.0, window + second, window + second)
            assert (pace.hold_opens_at() == window + 60.0) is (second == 20.0 or window > 0.0)
        pace.take(settings, 0, window + 60.0)
        pace.note_accepted(window + 60.0, settings, 0, window + 60.1, is_ok=True)


def test_first_429_restores_the_rate_of_a_known_quota() -> None:
    pacer, now = Pacer(0.0), 0.0
    now = _spend_window(pacer, now)
    assert pacer.is_learning
    now += 600.0
    assert pacer.snapshot(now).rate is None
    for _ in range(3):
        now = _call(pacer, now + 5.0, is_accepted=True)
    now = _call(pacer, now + 5.0, is_accepted=False)
    seen = pacer.snapshot(now)
    assert seen.rate is not None
    assert seen.rate <= 0.1
    assert seen.next_at - now >= 10.0


def test_released_pacer_knows_no_quota() -> None:
    pacer = Pacer(0.0)
    now = _spend_window(pacer, 0.0)
    pacer.release(now)
    now += 600.0
    for _ in range(3):
        now = _call(pacer, now + 5.0, is_accepted=True)
    now = _call(pacer, now + 5.0, is_accepted=False)
    assert pacer.snapshot(now).rate is None


def _spend_window(pacer: Pacer, now: float) -> float:
    """Sends calls at whatever pace is allowed to three fixed windows of three calls a minute."""
    begin = now
    counts: dict[int, int] = {}
    while now < begin + 180.0:
        now = max(now + 1.0, pacer.opens_at(now) + 0.03)
        window = int((now - begin) // 60)
        counts[window] = counts.get(window, 0) + 1
        now = _call(pacer, now, is_accepted=counts[window] <= 3)
    return now


def _call(pacer: Pacer, now: float, *, is_accepted: bool) -> float:
    pacer.take(now)
    if is_accepted:
        pacer.note_accepted(now, now + 0.05)
    else:
        pacer.note_rate_limited(now, now + 0.05)
    return now + 0.05
