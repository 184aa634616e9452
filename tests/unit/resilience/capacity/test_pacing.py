from __future__ import annotations

import random
from math import inf

import pytest

from llm_guard.resilience.capacity.pacing import Pacer
from llm_guard.resilience.capacity.rate_growth import PROBE_RATE, RateGrowth
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from llm_guard.resilience.throttling.gcra import BURST_S


def rate(pacer: Pacer, now: float) -> float:
    found = pacer.snapshot(now).rate
    assert found is not None
    return found


def refuse(pacer: Pacer, calls: int, now: float) -> None:
    """Notes `calls` calls that were sent 0.6 s ago: all got a 429, half a second ago, and the last one now."""
    for _ in range(calls):
        pacer.take(now - 0.6)
    for i in range(calls):
        pacer.note_rate_limited(now - 0.6, now if i == calls - 1 else now - 0.5)


def limited(calls: int = 40, now: float = 100.0) -> Pacer:
    """Returns a pacer that sent `calls` calls in the second before `now`, followed by about as many that got a 429."""
    pacer = Pacer(0.0)
    for i in range(calls):
        pacer.take(now - 1 + i / calls)
    refuse(pacer, max(calls + 10, 12), now)
    return pacer


def again(pacer: Pacer, now: float, calls: int = 20, refused: int = 1) -> None:
    """Notes `calls` calls that were sent just now, of which `refused` got a 429."""
    for _ in range(calls):
        pacer.take(now - 0.01)
    for _ in range(refused):
        pacer.note_rate_limited(now - 0.01, now)


def drain(pacer: Pacer, begin: float, end: float) -> int:
    """Returns the number of calls that are sent while one is always waiting."""
    now, gone = begin, 0
    while True:
        at = pacer.opens_at(now)
        now = max(now, at)
        if now >= end:
            return gone
        pacer.take(now)
        gone += 1


def test_nothing_is_known_at_first() -> None:
    pacer = Pacer(0.0)
    for _ in range(1000):
        assert pacer.opens_at(0.0) == -inf
        pacer.take(0.0)
    assert pacer.snapshot(0.0).rate is None


@pytest.mark.parametrize("share", [0.05, 0.2, 0.3])
def test_429s_that_retries_cure_are_not_paced(share: float) -> None:
    pacer, dice = Pacer(0.0), random.Random(1)
    for i in range(20_000):
        now = i / 100
        pacer.take(now)
        if dice.random() < share:
            pacer.note_rate_limited(now, now)
    assert pacer.snapshot(200.0).rate is None


@pytest.mark.parametrize(("calls", "refused"), [(1, 1), (5, 5), (20, 13), (100, 46)])
def test_few_429s_are_no_evidence(calls: int, refused: int) -> None:
    pacer = Pacer(9.0)
    for _ in range(calls - refused):
        pacer.take(9.4)
    refuse(pacer, refused, 10.0)
    assert pacer.snapshot(10.0).rate is None


def test_spent_quota_is_noticed_for_any_earlier_rate() -> None:
    pacer = Pacer(9.0)
    for _ in range(40):
        pacer.take(9.0)
    for i in range(20):
        pacer.take(9.1 + i / 25)
        pacer.note_rate_limited(9.1 + i / 25, 9.12 + i / 25)
    assert pacer.snapshot(10.0).rate is not None


@pytest.mark.parametrize(("calls", "refused"), [(20, 14), (100, 47)])
def test_429s_that_are_more_than_chance_are_paced(calls: int, refused: int) -> None:
    pacer = Pacer(9.0)
    for _ in range(calls - refused):
        pacer.take(9.4)
    refuse(pacer, refused, 10.0)
    assert rate(pacer, 10.0) == pytest.approx(0.9 * (calls - refused + 1))


def test_evidence_takes_half_a_second() -> None:
    pacer = Pacer(0.0)
    for tenth in range(5):
        again(pacer, 10 + tenth / 10, 20, 20)
    assert pacer.snapshot(10.4).rate is None
    again(pacer, 10.5)
    assert pacer.snapshot(10.5).rate is not None


def test_old_429s_are_no_evidence() -> None:
    pacer = Pacer(0.0)
    again(pacer, 10.0, 30, 30)
    for i in range(300):
        pacer.take(10.0 + i / 100)
    again(pacer, 13.0)
    assert pacer.snapshot(13.0).rate is None


def test_silence_before_does_not_lower_the_accepted_rate() -> None:
    pacer = Pacer(0.0)
    again(pacer, 50.0, 20, 20)
    for i in range(20):
        pacer.take(50.0 + i / 40)
    again(pacer, 50.5, 20, 20)
    assert rate(pacer, 50.5) > 18


def test_first_cut_leaves_nine_tenths_of_the_accepted_rate() -> None:
    assert rate(limited(), 100.0) == pytest.approx(0.9 * 41)


def test_calls_that_met_a_429_were_not_accepted() -> None:
    pacer = limited(100)
    first = rate(pacer, 100.0)
    assert first > 80
    pacer.take(100.25)
    again(pacer, 100.8, 40, 1)
    assert rate(pacer, 100.8) == pytest.approx(0.9 * 41 / 0.8), "41 less one, and one for luck, in 0.8 s"
    again(pacer, 101.2, 30, 20)
    assert rate(pacer, 101.2) == pytest.approx(0.9 * 41 / 0.8), "not yet again"
    again(pacer, 101.8, 30, 1)
    assert rate(pacer, 101.8) == pytest.approx(0.9 * (30 + 30 - 20)), "60 less 21, and one for luck, in a second"


def test_many_429s_at_a_time_are_one_signal() -> None:
    pacer = limited()
    before = rate(pacer, 100.0)
    for i in range(30):
        pacer.take(100.0)
        pacer.note_rate_limited(99.9, 100.0 + i / 10)
    assert rate(pacer, 103.0) == before
    pacer.note_rate_limited(100.49, 103.0)
    assert rate(pacer, 103.0) == before
    pacer.note_rate_limited(100.5, 103.0)
    assert rate(pacer, 103.0) < before


def test_one_429_of_few_calls_cuts_nothing() -> None:
    pacer = limited(5)
    before = rate(pacer, 100.0)
    again(pacer, 101.0, 7, 1)
    assert rate(pacer, 101.0) == before
    pacer.take(101.1)
    pacer.note_rate_limited(101.0, 101.1)
    assert rate(pacer, 101.1) < before


def test_next_429_finds_the_rate_accepted_since_the_cut() -> None:
    """A flood of 100/s was admitted; the provider's token bucket accepts 10/s."""
    pacer = limited(100)
    drain(pacer, 100.0, 101.0)
    for _ in range(80):
        pacer.note_rate_limited(100.0, 100.1)
    pacer.note_rate_limited(100.9, 101.0)
    assert rate(pacer, 101.0) == pytest.approx(45.0, rel=0.02), "halved at most"


def test_429s_of_calls_from_before_the_cut_do_not_count_again() -> None:
    pacer = limited(100)
    drain(pacer, 100.0, 101.0)
    for _ in range(30):
        pacer.note_rate_limited(99.9, 100.1)
    pacer.note_rate_limited(100.9, 101.0)
    assert rate(pacer, 101.0) > 80


def stopped() -> Pacer:
    """Returns a pacer in front of a provider that accepts nothing from 100 s on, nor in the minute before."""
    pacer = limited(0)
    assert pacer.snapshot(100.0).is_probing
    return pacer


def test_without_accepted_calls_one_call_a_second_probes() -> None:
    pacer = stopped()
    gone, now = 0, 100.0
    while now < 400.0:
        now = max(now, pacer.opens_at(now))
        pacer.take(now)
        pacer.note_rate_limited(now, now + 0.1)
        gone += 1
    assert gone == pytest.approx(300, abs=10)
    assert rate(pacer, 400.0) == PROBE_RATE


def test_first_answer_after_a_stop_opens_within_five_seconds() -> None:
    pacer = stopped()
    now = max(101.0, pacer.opens_at(101.0))
    pacer.take(now)
    pacer.note_accepted(now, now + 0.3)
    assert drain(pacer, now + 0.3, now + 5.3) > 500
    assert not pacer.snapshot(now + 5.3).is_probing


def test_probe_without_a_429_for_five_seconds_opens_too() -> None:
    pacer = stopped()
    drain(pacer, 101.0, 109.0)
    assert rate(pacer, 109.0) > PROBE_RATE


def test_wait_in_an_opening_is_estimated_as_it_doubles() -> None:
    pacer = stopped()
    assert pacer.wait_s(60, 101.0) == pytest.approx(60, abs=1)
    pacer.take(101.0)
    pacer.note_accepted(101.0, 101.3)
    assert pacer.wait_s(1000, 101.3) < 6.5


def test_rate_below_one_a_second_lasts_only_while_successes_confirm_it() -> None:
    pacer = Pacer(0.0)
    for second in range(0, 96, 4):
        pacer.take(float(second))
        pacer.note_accepted(float(second), second + 0.3)
    refuse(pacer, 40, 100.0)
    assert rate(pacer, 100.0) < PROBE_RATE
    assert not pacer.snapshot(100.0).is_probing
    pacer.opens_at(140.0)
    assert rate(pacer, 140.0) < PROBE_RATE
    pacer.opens_at(159.0)
    assert rate(pacer, 159.0) == PROBE_RATE
    assert pacer.snapshot(159.0).is_probing


def test_rate_is_shown_with_its_cause_and_its_beginning() -> None:
    pacer = Pacer(0.0)
    assert (pacer.snapshot(1.0).cause, pacer.snapshot(1.0).since) == (None, None)
    pacer.note_hint(requests(0.0), 0, 0, 5.0, 5.0)
    assert (pacer.snapshot(6.0).cause, pacer.snapshot(6.0).since) == ("headers", 5.0)
    pacer = limited()
    assert (pacer.snapshot(101.0).cause, pacer.snapshot(101.0).since) == ("rate_limits", 100.0)


def vain(pacer: Pacer, begin: float, epochs: int = 3, share: float = 0.25) -> float:
    """Notes as many 429s after each cut as before, and one that ends each epoch; returns when the last one arrived."""
    for i in range(epochs):
        again(pacer, begin + i + 0.4, 40, round(40 * share) - 1)
        again(pacer, begin + i + 1, 1, 1)
    return begin + epochs


def test_pace_without_effect_three_times_is_given_up() -> None:
    pacer = limited(100)
    assert pacer.snapshot(vain(pacer, 100.0, 2)).rate is not None
    assert pacer.snapshot(vain(pacer, 102.0, 1)).rate is None


def test_epoch_that_helped_restarts_the_count() -> None:
    pacer = limited(100)
    now = vain(pacer, 100.0, 2)
    drain(pacer, now, now + 3)
    again(pacer, now + 3)
    assert pacer.snapshot(vain(pacer, now + 3, 2)).rate is not None


def test_epoch_in_which_most_meet_a_429_proves_nothing() -> None:
    pacer = limited(100)
    assert pacer.snapshot(vain(pacer, 100.0, 10, share=0.65)).rate is not None


def test_after_it_only_more_than_the_background_is_a_sign() -> None:
    pacer = limited(100)
    now = vain(pacer, 100.0, share=0.55) + 2
    for _ in range(50):
        pacer.take(now - 0.6)
    refuse(pacer, 50, now)
    assert pacer.snapshot(now).rate is None, "50 of 100 were signs enough at first"
    refuse(pacer, 90, now + 0.6)
    assert pacer.snapshot(now + 0.6).rate is not None


def test_known_background_does_not_cut() -> None:
    pacer = limited(100)
    now = vain(pacer, 100.0) + 2
    for _ in range(60):
        pacer.take(now - 0.6)
    refuse(pacer, 90, now)
    before = rate(pacer, now)
    again(pacer, now + 1, 40, 6)
    assert rate(pacer, now + 1) == before
    again(pacer, now + 1, 0, 20)
    assert rate(pacer, now + 1) < before


def test_cut_makes_room_for_the_background_and_is_deeper() -> None:
    pacer = limited(100)
    now = vain(pacer, 100.0) + 2
    background = pacer._learned._epoch._background.share(now)
    assert background == pytest.approx(10 / 41, rel=0.02)
    for _ in range(60):
        pacer.take(now - 0.6)
    refuse(pacer, 90, now)
    accepted = (60 + 1) / (now - 103.0)
    assert rate(pacer, now) == pytest.approx(0.81 * accepted / (1 - background), rel=0.01)


def test_calls_without_a_chance_of_an_answer_are_not_taken_for_accepted() -> None:
    """Each 429 takes 0.4 s, so in an epoch of one second only the calls of the first 0.6 s are answered."""
    pacer, cut_at = limited(100), 100.0
    for _ in range(3):
        for i in range(50):
            pacer.take(cut_at + i / 50)
        for i in range(0, 30, 5):
            pacer.note_rate_limited(cut_at + 0.6 if i == 25 else cut_at + i / 50, cut_at + 1)
        cut_at += 1
    assert pacer.snapshot(cut_at).rate is None
    assert pacer._learned._epoch._background.share(cut_at) == pytest.approx(6 / 30, rel=0.05)


def test_background_is_known_for_a_minute_and_then_for_two() -> None:
    pacer, now = limited(100), 100.0
    for known_s in (60, 120, 240):
        now = vain(pacer, now, share=0.55)
        for _ in range(50):
            pacer.take(now + known_s - 1.6)
        refuse(pacer, 50, now + known_s - 1)
        assert pacer.snapshot(now + known_s - 1).rate is None
        now += known_s + 3
        for i in range(30):
            pacer.take(now - 4 + i / 10)
        for _ in range(50):
            pacer.take(now - 0.6)
        refuse(pacer, 50, now)
        assert pacer.snapshot(now).rate is not None


def test_epoch_after_a_forgotten_one_begins_with_nothing() -> None:
    pacer = limited(100)
    vain(pacer, 100.0, 2)
    assert pacer.snapshot(200.0).rate is None
    for _ in range(100):
        pacer.take(300.0 - 0.6)
    refuse(pacer, 105, 300.0)
    assert pacer.snapshot(vain(pacer, 300.0, 2)).rate is not None


def test_calls_are_spread() -> None:
    pacer = limited(1000)
    assert rate(pacer, 100.0) == pytest.approx(900, rel=0.01)
    now = 105.0
    at_once = 0
    while pacer.opens_at(now) <= now:
        pacer.take(now)
        at_once += 1
    assert at_once == pytest.approx(900 * BURST_S + 1, abs=1)


def test_long_silence_does_not_save_up_calls() -> None:
    pacer = limited(10)
    pacer.take(130.0)
    assert pacer.opens_at(130.0) > 130.0


@pytest.mark.parametrize("calls_per_s", [2, 10, 100, 1000])
def test_rate_doubles_within_two_seconds_of_waiting_calls_that_are_not_refused(calls_per_s: int) -> None:
    pacer = limited(calls_per_s)
    before = rate(pacer, 100.0)
    drain(pacer, 100.0, 101.0)
    assert rate(pacer, 101.0) == pytest.approx(before / 0.9, rel=0.1)
    drain(pacer, 101.0, 102.1)
    assert rate(pacer, 102.1) >= 1.9 * before


def test_calls_return_slowly_although_a_higher_rate_is_learned() -> None:
    """After a storm 139 calls that waited for a Retry-After went within a second: a rate of 312/s was left."""
    pacer = limited(400)
    assert rate(pacer, 100.0) > 100
    pacer.open_slowly(101.0, ceiling=20.0, calls=60)
    assert drain(pacer, 101.0, 102.0) <= 5
    pacer.open_slowly(103.0, ceiling=1000.0, calls=60)
    assert rate(pacer, 103.0) <= 20


def test_calls_that_waited_before_a_slow_start_do_not_double_it_at_its_ceiling() -> None:
    growth = RateGrowth()
    growth.recover(0.5, 9.0, can_double=False)
    growth.limit_slow_start(10.0, 100)
    growth.end_slow_start(10.0)
    found = 10.0
    for _ in range(4):
        found = growth.recover(found, 0.5, can_double=True)
    assert found < 11.0


def test_background_is_forgotten_after_a_row_of_answers_that_it_makes_all_but_impossible() -> None:
    pacer = limited(100)
    now = vain(pacer, 100.0) + 2
    background = pacer._learned._epoch._background
    assert background.share(now) > 0
    for _ in range(60):
        pacer.take(now)
        pacer.note_accepted(now, now)
    pacer.take(now)
    pacer.note_rate_limited(now, now + 0.1)
    assert background.share(now) == 0.0


def test_storm_that_refuses_every_second_call_is_not_taken_for_a_quota_again() -> None:
    """The pace used to fall to 0.03 calls/s within ten minutes."""
    pacer, now, before, draw = Pacer(0.0), 0.0, 1.0, random.Random(1)
    for _ in range(60):
        now += 1.0 / before
        pacer.take(now)
        pacer.note_accepted(now, now + 0.3)
    rates = []
    while now < 600.0:
        now = max(now + 0.2, pacer.opens_at(now))
        pacer.take(now)
        if draw.random() < 0.5:
            pacer.note_rate_limited(now, now + 0.05)
        else:
            pacer.note_accepted(now, now + 0.3)
        rates.append((now, pacer.snapshot(now).rate or 100.0))
    assert min(rate for _, rate in rates) >= 0.45 * before, "a quota allows half of what it has accepted in a minute"
    found_at = next(at for at, rate in reversed(rates) if rate < 1.0)
    assert found_at < 300.0, "from then on there is one call a second or more"


def doubtful() -> Pacer:
    """Returns a pacer for which two 429s at low rates are unexplained."""
    pacer = Pacer(0.0)
    evidence = pacer._learned._evidence
    evidence.note_accepted_rate(1.0, 40.0)
    evidence.note_rate_limited(0.5, 1)
    evidence.note_rate_limited(0.5, 2)
    assert evidence.is_doubtful
    return pacer


def test_release_forgets_that_there_is_no_quota() -> None:
    pacer = doubtful()
    pacer._learned._storm.begin(100.0)
    pacer.release(101.0)
    assert not pacer._learned._evidence.is_doubtful
    assert not pacer._learned._storm.is_recent(101.0)


def test_doubts_of_a_quota_end_with_its_rate() -> None:
    """Two unexplained 429s, a day without calls and a third one used to refute it."""
    pacer = doubtful()
    pacer._learned.forget()
    assert not pacer._learned._evidence.is_doubtful


def test_quota_and_stop_are_kept_when_calls_return_slowly() -> None:
    """A hold of a minute, in which few calls waited, used to end them."""
    for accepted in (0, 6):
        pacer = Pacer(0.0)
        for n in range(accepted):
            pacer.take(41.0 + n)
            pacer.note_accepted(41.0 + n, 41.5 + n)
        for n in range(30):
            pacer.take(60.0 + n / 10)
            pacer.note_rate_limited(60.0 + n / 10, 60.05 + n / 10)
        before = pacer.snapshot(64.0)
        assert before.rate is not None
        assert before.rate <= 1.0
        pacer.open_slowly(64.0, ceiling=0.1, calls=15)
        assert pacer.snapshot(64.0) == before


def test_rate_whose_doubling_was_refused_comes_back_and_stays_there_for_longer() -> None:
    """A limit that still exists is tested rarely; one that no longer exists is forgotten nevertheless."""
    pacer = limited(100)
    before = rate(pacer, 100.0)
    drain(pacer, 100.0, 101.8)
    assert rate(pacer, 101.8) > 1.3 * before
    again(pacer, 101.8, calls=40, refused=20)
    cut = rate(pacer, 101.8)
    drain(pacer, 101.8, 105.5)
    assert rate(pacer, 105.5) < 1.5 * cut
    drain(pacer, 105.5, 108.8)
    assert rate(pacer, 108.8) > 2 * cut


def test_429s_of_a_storm_that_refuses_a_part_of_all_calls_do_not_delay_the_growth() -> None:
    pacer = limited(100)
    pacer._learned._storm.begin(100.0)
    drain(pacer, 100.0, 101.8)
    again(pacer, 101.8, calls=40, refused=20)
    cut = rate(pacer, 101.8)
    drain(pacer, 101.8, 105.5)
    assert rate(pacer, 105.5) > 2 * cut


def test_rate_above_the_one_at_which_calls_come_doubles_once_in_twenty_calls() -> None:
    """It used to reach 25 a second within three seconds, for a backlog of 20 calls."""
    pacer = Pacer(0.0)
    pacer.open_slowly(100.0, ceiling=2.0, calls=16)
    drain(pacer, 100.0, 109.0)
    assert rate(pacer, 109.0) < 2.5
    drain(pacer, 109.0, 112.0)
    assert rate(pacer, 112.0) < 4.0
    drain(pacer, 112.0, 130.0)
    assert rate(pacer, 130.0) > 8.0


def test_rate_does_not_grow_without_calls_that_wait() -> None:
    pacer = limited()
    before = rate(pacer, 100.0)
    now = 100.1
    for _ in range(400):
        assert pacer.opens_at(now) <= now
        pacer.take(now)
        now += 1.1 / before
    assert rate(pacer, now) == before


def test_two_queries_do_not_grow_it_twice() -> None:
    once, often = limited(), limited()
    drain(once, 100.0, 101.0)
    now = 100.0
    while now < 101.0:
        now = max(now, *(often.opens_at(now) for _ in range(5)))
        if now < 101.0:
            often.take(now)
    assert rate(often, 101.0) == rate(once, 101.0)


def test_rate_is_forgotten_after_a_minute_without_need() -> None:
    pacer = limited()
    assert pacer.snapshot(159.9).rate is not None
    assert pacer.snapshot(160.0).rate is None
    assert pacer.opens_at(160.0) == -inf


def test_calls_that_never_wait_let_the_rate_be_forgotten() -> None:
    pacer = limited()
    for second in range(110, 161, 10):
        assert pacer.opens_at(float(second)) <= second
        pacer.take(float(second))
    assert pacer.snapshot(161.0).rate is None


def test_rate_that_binds_is_not_forgotten() -> None:
    pacer = limited()
    for second in range(130, 200):
        pacer.take(float(second))
        pacer.opens_at(float(second))
    assert pacer.snapshot(200.0).rate is not None


def test_call_that_was_not_sent_returns_its_turn() -> None:
    pacer = limited()
    now = max(100.0, pacer.opens_at(100.0))
    pacer.take(now)
    after_one = pacer.opens_at(now)
    pacer.take(now)
    pacer.put_back(now, now)
    assert pacer.opens_at(now) == pytest.approx(after_one, rel=1e-4)


def test_release_forgets_the_rate_and_its_cause() -> None:
    pacer = limited()
    pacer.note_hint(requests(1.0), 0, 0, 100.0, 100.0)
    pacer.release(100.0)
    assert pacer.snapshot(100.0).rate is None
    again(pacer, 102.0, 20, 5)
    assert pacer.snapshot(102.0).rate is None


def requests(remaining: float, limit: float = 60.0, refill_per_s: float = 1.0) -> RateHint:
    return RateHint((RateLimitWindow("x-ratelimit-remaining-requests", False, limit, remaining, refill_per_s),))


def tokens(remaining: float, refill_per_s: float = 0.0) -> RateHint:
    return RateHint((RateLimitWindow("x-ratelimit-remaining-tokens", True, 100_000.0, remaining, refill_per_s),))


def test_window_that_is_nearly_used_up_binds() -> None:
    pacer = Pacer(0.0)
    pacer.note_hint(requests(4.0), 0, 4, 0.0, 0.0)
    assert pacer.snapshot(0.0).rate is None
    pacer.note_hint(requests(3.0), 0, 0, 0.0, 0.0)
    assert rate(pacer, 0.0) == pytest.approx(1.3)
    pacer.note_hint(requests(0.0), 0, 0, 0.0, 0.0)
    assert rate(pacer, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("waiting", "in_flight", "expected"), [(0, 31, 2.8), (31, 0, 4.0), (30, 1, 3.9)])
def test_window_with_fewer_calls_than_are_in_flight_and_waiting_binds(
    waiting: int, in_flight: int, expected: float
) -> None:
    """The provider may not have counted calls in flight yet: up to a fifth of the window is kept back for them."""
    pacer = Pacer(0.0)
    pacer.note_hint(requests(30.0), waiting, in_flight, 0.0, 0.0)
    assert rate(pacer, 0.0) == pytest.approx(expected)


def test_late_headers_of_an_earlier_request_are_ignored() -> None:
    pacer = Pacer(0.0)
    pacer.note_hint(requests(0.0), 0, 0, 2.0, 2.1)
    pacer.note_hint(requests(60.0), 0, 0, 1.0, 2.2)
    assert rate(pacer, 2.2) == pytest.approx(1.0)


def fixed(remaining: float, reset_s: float) -> RateHint:
    refill_per_s = (60.0 - remaining) / reset_s
    return RateHint((RateLimitWindow("x-ratelimit-remaining-requests", False, 60.0, remaining, refill_per_s, reset_s),))


def window_that_empties(pacer: Pacer) -> None:
    """Reports a call per second from 10 s on; after 50 s all that remains is used up at once."""
    for second in range(10, 50):
        pacer.note_hint(fixed(60.0 - (second - 9), 60.0 - second), 0, 0, float(second), float(second))
    pacer.note_hint(fixed(0.0, 10.0), 20, 0, 50.0, 50.0)


def test_empty_fixed_window_admits_nothing_before_its_reset() -> None:
    pacer = Pacer(0.0)
    window_that_empties(pacer)
    assert pacer.opens_at(51.0) == pytest.approx(60.0, abs=0.1)
    assert pacer.wait_s(6, 51.0) == pytest.approx(10.0, abs=0.1)


def test_calls_that_waited_for_a_reset_spend_the_new_window_over_ten_seconds() -> None:
    pacer = Pacer(0.0)
    window_that_empties(pacer)
    assert rate(pacer, 60.1) == pytest.approx(6.0)
    pacer.note_hint(fixed(59.0, 59.8), 19, 1, 60.2, 60.3)
    assert pacer.snapshot(60.3).rate is None


def test_bucket_whose_reset_moves_with_each_call_is_not_closed() -> None:
    pacer = Pacer(0.0)
    for second in range(10, 50):
        left = 60.0 - 1.5 * (second - 9)
        pacer.note_hint(
            RateHint((RateLimitWindow("x-remaining", False, 60.0, left, 1.0, 60.0 - left),)), 0, 0, second, second
        )
    pacer.note_hint(RateHint((RateLimitWindow("x-remaining", False, 60.0, 0.0, 1.0, 60.0),)), 0, 0, 50.0, 50.0)
    assert pacer.opens_at(51.0) <= 52.0
    assert rate(pacer, 51.0) == pytest.approx(1.0)


def test_responses_with_headers_admit_no_more_calls_than_the_rate() -> None:
    pacer = Pacer(0.0)
    gone = 0
    for i in range(1000):
        now = i / 1000
        pacer.note_hint(requests(0.0, limit=6000.0, refill_per_s=100.0), 0, 0, now, now)
        if pacer.opens_at(now) <= now:
            pacer.take(now)
            gone += 1
    assert gone <= 105


def test_full_window_does_not_bind() -> None:
    pacer = Pacer(0.0)
    pacer.note_hint(requests(1.0, limit=1.0, refill_per_s=0.0), 0, 5, 0.0, 0.0)
    assert pacer.snapshot(0.0).rate is None


def test_hint_is_forgotten_and_frees_the_next_call() -> None:
    pacer = Pacer(0.0)
    pacer.note_hint(requests(0.0, refill_per_s=0.02), 0, 0, 0.0, 0.0)
    pacer.take(0.0)
    assert pacer.opens_at(0.0) == pytest.approx(30.0, abs=0.1)
    assert pacer.opens_at(29.8) > 29.8
    assert pacer.opens_at(30.0) <= 30.0
    assert pacer.snapshot(30.0).rate is None


def test_better_news_free_the_next_call() -> None:
    pacer = Pacer(0.0)
    pacer.note_hint(requests(0.0, refill_per_s=0.02), 0, 0, 0.0, 0.0)
    pacer.take(0.0)
    pacer.note_hint(requests(0.0, refill_per_s=10.0), 0, 0, 1.0, 1.0)
    assert pacer.opens_at(1.0) <= 1.1
    pacer.note_hint(requests(50.0), 0, 0, 1.0, 1.0)
    assert pacer.opens_at(1.0) == -inf


def test_lower_of_both_rates_binds_and_a_hint_does_not_grow() -> None:
    pacer = limited()
    pacer.note_hint(requests(0.0, refill_per_s=5.0), 0, 0, 100.0, 100.0)
    assert drain(pacer, 100.0, 110.0) == pytest.approx(50, abs=1)
    assert rate(pacer, 110.0) == 5.0
    pacer.note_hint(requests(0.0, refill_per_s=500.0), 0, 0, 110.0, 110.0)
    assert rate(pacer, 110.0) == pytest.approx(36.0, rel=0.03)


def test_tokens_are_converted_to_calls_by_the_tokens_of_a_call() -> None:
    pacer = Pacer(0.0)
    left = 100_000.0
    for i in range(8):
        pacer.note_hint(tokens(left, 100.0), 0, 0, float(i), float(i))
        for _ in range(4):
            pacer.take(float(i))
        left -= 4 * 500 - 100
    pacer.note_hint(tokens(4_000.0, 100.0), 0, 0, 8.0, 8.0)
    price = 500 + 0.3 * ((left - 4_000) / 4)
    assert rate(pacer, 8.0) == pytest.approx((100 + 400) / price, rel=0.05)


def test_tokens_of_unknown_price_do_not_bind() -> None:
    pacer = Pacer(0.0)
    pacer.note_hint(tokens(1.0, 1.0), 0, 100, 0.0, 0.0)
    pacer.note_hint(tokens(1.0, 1.0), 0, 100, 0.0, 0.0)
    assert pacer.snapshot(0.0).rate is None


def test_memory_of_windows_is_bounded() -> None:
    pacer = Pacer(0.0)
    for i in range(1000):
        pacer.note_hint(RateHint((RateLimitWindow(f"x-{i}-tokens", True, 9.0, 9.0, 1.0),)), 0, 0, 0.0, 0.0)
    assert len(pacer._header._windows) <= 16


def test_call_that_was_not_sent_is_not_part_of_the_learned_rate() -> None:
    rates = []
    for has_more in (False, True):
        pacer = Pacer(0.0)
        for i in range(40):
            pacer.take(99.0 + i / 40)
            if has_more:
                pacer.take(99.0 + i / 40)
                pacer.put_back(99.0 + i / 40, 99.0 + i / 40)
        refuse(pacer, 50, 100.0)
        rates.append(rate(pacer, 100.0))
    assert rates[0] == rates[1]


def test_part_of_a_rate_hardly_grows() -> None:
    for is_part, least, most in ((True, 10.5, 11.1), (False, 30.0, inf)):
        pacer = Pacer(0.0)
        pacer.begin_at(10.0, 0.0, is_stopped=False, is_part=is_part)
        now, found = 0.0, 0.0
        while now < 30.0:
            now = max(now + 0.001, pacer.opens_at(now))
            pacer.take(now)
            found = max(found, rate(pacer, now))
        assert least <= found <= most
