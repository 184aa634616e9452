from __future__ import annotations

import random
from math import inf

import pytest

from llm_guard.resilience.client_keys.limit_states import ClientUse, Exceeded, Refusing
from llm_guard.resilience.client_keys.limits import ClientLimits, Reservation
from llm_guard.resilience.client_keys.settings import ClientLimitSettings
from llm_guard.resilience.client_keys.token_sums import DAY_S

NOON = 20_000 * DAY_S + DAY_S / 2


class Key:
    """The limits of one client key, on a manual clock."""

    def __init__(self, **limits: float) -> None:
        self.now, self.wall = 1000.0, NOON
        self.limits = ClientLimits(ClientLimitSettings(**limits), self.now, self.wall)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def ask(self, tokens: int = 0) -> Reservation | Exceeded:
        return self.limits.try_enter(tokens, self.now, self.wall)

    def enter(self, tokens: int = 0) -> Reservation:
        found = self.ask(tokens)
        assert isinstance(found, Reservation), found
        return found

    def refused(self, tokens: int = 0) -> Exceeded:
        found = self.ask(tokens)
        assert isinstance(found, Exceeded)
        return found

    def leave(self, reservation: Reservation, tokens: int = 0) -> None:
        self.limits.leave(reservation, tokens)

    def left(self) -> dict[str, float]:
        return {limit_left.limit: limit_left.left for limit_left in self.limits.left(self.now, self.wall)}


def check_is_exact(key: Key, tokens: int = 0) -> float:
    """Checks that a refused call is admitted exactly after its wait, and returns that wait."""
    wait_s = key.refused(tokens).retry_after_s
    assert wait_s is not None
    key.wait(wait_s - 0.001)
    assert isinstance(key.ask(tokens), Exceeded)
    key.wait(0.001 + 1e-6)
    key.enter(tokens)
    return wait_s


def test_key_without_limits_is_never_refused() -> None:
    key = Key()
    for _ in range(1000):
        key.enter(10**9)
    assert key.limits.left(key.now, key.wall) == ()


@pytest.mark.parametrize(("rate", "burst"), [(0.1, 1), (1, 1), (2.5, 2), (10, 10), (1000, 1000)])
def test_calls_of_a_second_may_arrive_at_once(rate: float, burst: int) -> None:
    key = Key(rate=rate)
    for _ in range(burst):
        key.enter()
    assert key.refused().limit == "rate"
    assert check_is_exact(key) <= 1 / rate + 1e-6


def test_rate_is_enforced_in_the_long_run() -> None:
    key, count = Key(rate=5), 0
    for _ in range(10_000):
        count += isinstance(key.ask(), Reservation)
        key.wait(0.01)
    assert 500 <= count <= 505


def test_refused_calls_use_nothing() -> None:
    key = Key(rate=1, tokens_per_day=100)
    key.enter(10)
    for _ in range(100):
        key.refused(10)
    assert key.left() == {"rate": 0, "tokens_per_day": 90}
    key.wait(1)
    key.enter(10)


def test_calls_at_once() -> None:
    key = Key(concurrency=2)
    first, _ = key.enter(), key.enter()
    assert key.refused() == Exceeded("concurrency", 1.0)
    assert key.left() == {"concurrency": 0}
    key.leave(first)
    key.enter()
    assert isinstance(key.ask(), Exceeded)


def test_tokens_flow_back_within_a_minute() -> None:
    key = Key(tokens_per_minute=600)
    key.enter(600)
    assert key.left() == {"tokens_per_minute": 0}
    assert check_is_exact(key, 100) == pytest.approx(10)
    key.wait(60)
    assert key.left() == {"tokens_per_minute": 600}


def test_call_larger_than_the_tokens_of_a_minute_is_admitted_when_none_are_used() -> None:
    key = Key(tokens_per_minute=600)
    key.enter(1)
    assert check_is_exact(key, 6000) == pytest.approx(0.1)
    assert key.refused(1).retry_after_s == pytest.approx(540.1)


@pytest.mark.parametrize("used", [0, 50, 100, 300])
def test_estimate_is_corrected_by_the_usage(used: int) -> None:
    key = Key(tokens_per_minute=600, tokens_per_day=1000)
    key.leave(key.enter(100), used)
    assert key.left() == {"tokens_per_minute": 600 - used, "tokens_per_day": 1000 - used}


def test_tokens_of_a_day_are_restored_at_midnight_utc() -> None:
    key = Key(tokens_per_day=100)
    key.leave(key.enter(60), 100)
    assert check_is_exact(key, 1) == pytest.approx(DAY_S / 2)
    assert key.left() == {"tokens_per_day": 99}


def test_call_over_midnight_is_of_the_day_on_which_it_began() -> None:
    key = Key(tokens_per_day=100)
    reservation = key.enter(60)
    key.wait(DAY_S)
    key.enter(10)
    key.leave(reservation, 90)
    assert key.left() == {"tokens_per_day": 90}


def test_correction_after_midnight_does_not_touch_the_new_day() -> None:
    key = Key(tokens_per_day=100)
    reservation = key.enter(60)
    key.wait(DAY_S)
    key.leave(reservation, 90)
    assert key.left() == {"tokens_per_day": 100}
    assert key.refused(101).retry_after_s is None
    key.enter(100)


def test_call_larger_than_the_tokens_of_a_day_is_never_admitted() -> None:
    assert Key(tokens_per_day=100).refused(101) == Exceeded("tokens_per_day", None)


def test_limit_that_lasts_longest_is_named() -> None:
    key = Key(rate=1, tokens_per_minute=60, tokens_per_day=60)
    key.enter(60)
    assert key.refused(1).limit == "tokens_per_day"


def test_call_without_a_slot_neither_needs_nor_frees_one() -> None:
    key = Key(concurrency=1)
    running = key.limits.try_enter(0, key.now, key.wall)
    stored = key.limits.try_enter(0, key.now, key.wall, without="concurrency")
    assert isinstance(running, Reservation)
    assert isinstance(stored, Reservation)
    key.limits.leave(stored, 0)
    assert isinstance(key.limits.try_enter(0, key.now, key.wall), Exceeded)


def test_deferred_call_was_counted_by_the_rate_at_its_arrival() -> None:
    key = Key(rate=1, concurrency=2)
    key.enter()
    for _ in range(3):
        deferred = key.limits.try_enter(0, key.now, key.wall, without="rate")
        assert isinstance(deferred, Reservation)
        key.leave(deferred)
    key.wait(1)
    key.enter()
    refused = key.limits.try_enter(0, key.now, key.wall, without="rate")
    assert isinstance(refused, Exceeded)
    assert refused.limit == "concurrency"


def test_clock_set_back_over_midnight_restores_nothing() -> None:
    key = Key(tokens_per_day=100)
    key.wall += DAY_S / 2 + 1
    key.enter(100)
    key.wall -= 2
    assert key.left() == {"tokens_per_day": 0}
    assert key.refused(1).limit == "tokens_per_day"
    key.wall += 2
    assert key.refused(1).limit == "tokens_per_day"
    key.wall += DAY_S
    key.enter(100)


def test_clock_that_was_years_ahead_ends_no_day_for_good() -> None:
    key = Key(tokens_per_day=100)
    key.wall += 3000 * DAY_S
    key.enter(100)
    key.wall -= 3000 * DAY_S
    key.enter(100)


def test_sum_of_a_day_that_has_not_begun_by_this_clock_is_taken_up() -> None:
    key = Key(tokens_per_day=100)
    key.limits.restore_day(int(NOON // DAY_S) + 1, 60, NOON)
    assert key.left() == {"tokens_per_day": 40}


def test_sum_of_the_day_survives_a_restart_and_no_other_day_does() -> None:
    key = Key(tokens_per_day=100)
    key.enter(70)
    day, tokens = key.limits.day
    again, later = Key(tokens_per_day=100), Key(tokens_per_day=100)
    again.limits.restore_day(day, tokens, again.wall)
    assert again.left() == {"tokens_per_day": 30}
    later.wait(DAY_S)
    later.limits.restore_day(day, tokens, later.wall)
    assert later.left() == {"tokens_per_day": 100}


def test_changed_settings_preserve_usage() -> None:
    key = Key(tokens_per_day=100)
    key.enter(70)
    key.limits.settings = ClientLimitSettings(tokens_per_day=200, tokens_per_minute=10)
    assert key.left() == {"tokens_per_minute": 10, "tokens_per_day": 130}


def test_call_that_began_before_a_limit_counts_with_its_usage_at_its_end() -> None:
    key = Key(concurrency=9)
    call = key.enter(70)
    key.limits.settings = ClientLimitSettings(tokens_per_minute=100)
    other = key.enter(60)
    key.leave(call, 30)
    assert key.left() == {"tokens_per_minute": 10}
    key.leave(other, 50)
    assert key.left() == {"tokens_per_minute": 20}


def test_reset_forgets_all_but_the_calls_that_run() -> None:
    key = Key(rate=1, concurrency=1, tokens_per_minute=60, tokens_per_day=60)
    reservation = key.enter(60)
    key.refused(1)
    assert {refusing.limit for refusing in key.limits.refusing(key.now)} == {
        "rate", "concurrency", "tokens_per_minute", "tokens_per_day",
    }  # fmt: skip
    key.limits.reset(key.now, key.wall)
    assert key.left() == {"rate": 1, "concurrency": 0, "tokens_per_minute": 60, "tokens_per_day": 60}
    assert key.limits.refusing(key.now) == ()
    key.leave(reservation, 60)
    key.enter(60)


def test_refused_since_the_first_refusal_of_a_row() -> None:
    key = Key(rate=0.5)
    key.enter()
    key.wait(0.5)
    began = key.now
    key.refused()
    key.wait(0.5)
    key.refused()
    assert key.limits.refusing(key.now) == (Refusing("rate", began, began + 1.5, refused=2),)
    key.wait(1)
    assert key.limits.refusing(key.now) == ()
    key.enter()
    key.wait(1)
    key.refused()
    assert key.limits.refusing(key.now) == (Refusing("rate", key.now, key.now + 1),)


def test_refusal_of_long_ago_is_of_another_row() -> None:
    key = Key(concurrency=1)
    key.enter()
    key.refused()
    key.wait(5)
    key.refused()
    assert key.limits.refusing(key.now) == (Refusing("concurrency", key.now, key.now + 1),)


def test_limit_that_lets_a_call_in_refuses_no_longer() -> None:
    key = Key(concurrency=1)
    first = key.enter()
    key.refused()
    key.leave(first)
    key.enter()
    assert key.limits.refusing(key.now) == ()


def test_random_calls_never_exceed_a_limit() -> None:
    dice = random.Random(1)
    for _ in range(30):
        key = Key(rate=5, concurrency=3, tokens_per_minute=600, tokens_per_day=3000)
        running: list[Reservation] = []
        used = 0
        for _ in range(400):
            key.wait(dice.random() / 5)
            if running and dice.random() < 0.5:
                one = running.pop(dice.randrange(len(running)))
                key.leave(one, one.tokens)
            tokens = dice.randrange(200)
            before = key.left()
            found = key.ask(tokens)
            if isinstance(found, Exceeded):
                assert key.left() == before
                continue
            running.append(found)
            used += tokens
            assert before["concurrency"] >= 1
            assert before["tokens_per_minute"] >= tokens - 1e-6
            assert before["tokens_per_day"] >= tokens
        assert used <= 3000
        assert len(running) <= 3
        for one in running:
            key.leave(one, one.tokens)
        assert key.left()["concurrency"] == 3
        assert all(0 <= value < inf for value in key.left().values())


# calls that enter without a check


def test_calls_of_a_busy_key_enter_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key(rate=1000, concurrency=100, tokens_per_minute=1_000_000, tokens_per_day=1_000_000)
    checks: list[float] = []
    exceeded = ClientLimits._exceeded

    def check(limits: ClientLimits, tokens: int, now: float, wall: float) -> list[Exceeded]:
        checks.append(now)
        return exceeded(limits, tokens, now, wall)

    monkeypatch.setattr(ClientLimits, "_exceeded", check)
    key.enter(10)
    for _ in range(19):
        key.wait(0.001)
        key.leave(key.enter(10), 10)
    assert len(checks) == 1
    key.wait(0.001)
    assert key.left() == {
        "rate": pytest.approx(981), "concurrency": 99, "tokens_per_minute": pytest.approx(1_000_000 - 190, abs=0.1),
        "tokens_per_day": 1_000_000 - 200,
    }  # fmt: skip


def test_changed_limits_hold_from_the_next_call_on() -> None:
    key = Key(rate=1000, tokens_per_day=1000)
    key.enter(10)
    key.limits.settings = ClientLimitSettings(tokens_per_day=20)
    key.enter(10)
    assert key.refused(10).limit == "tokens_per_day"
    key = Key(concurrency=10)
    key.enter()
    key.limits.slots = 1
    assert key.refused().limit == "concurrency"


def test_tokens_of_the_day_used_elsewhere_hold_from_the_next_call_on() -> None:
    day = int(NOON // DAY_S)
    key, other = Key(tokens_per_day=100), Key(tokens_per_day=100)
    for each in (key, other):
        each.enter(10)
    key.limits.restore_day(day, 80, key.wall)
    other.limits.note_day_elsewhere(day, 80, key.wall)
    assert (key.refused(11).limit, other.refused(11).limit) == ("tokens_per_day", "tokens_per_day")


def test_no_call_of_the_new_day_enters_as_one_of_the_old() -> None:
    key = Key(tokens_per_day=100)
    key.wait(DAY_S / 2 - 0.01)
    for _ in range(2):  # the key is busy
        key.enter(10)
    key.wait(0.01)
    key.enter(30)
    assert key.left() == {"tokens_per_day": 70}


def test_correction_of_another_day_makes_no_room_on_this_one() -> None:
    key = Key(tokens_per_day=100)
    key.wait(DAY_S / 2 - 0.01)
    large = key.enter(90)
    key.wait(0.01)
    key.enter(10)
    key.leave(large, 0)
    assert key.refused(95).limit == "tokens_per_day"
    assert key.left() == {"tokens_per_day": 90}


# limits that several gateways have together


def test_use_elsewhere_counts_as_use_here() -> None:
    key = Key(rate=10, tokens_per_minute=600, tokens_per_day=1000)
    key.limits.share(2, knows_others=True)
    key.limits.note_elsewhere(30, 300, key.now)
    key.limits.note_day_elsewhere(int(NOON // DAY_S), 900, key.wall)
    key.limits.note_day_elsewhere(int(NOON // DAY_S), 700, key.wall)  # an estimate was too high
    assert key.left() == {"rate": 0, "tokens_per_minute": 300, "tokens_per_day": 300}
    assert key.limits.left(key.now, key.wall)[0].reset_s == pytest.approx(3.0)
    assert isinstance(key.limits.try_enter(0, key.now + 2.0, key.wall), Exceeded)
    assert isinstance(key.limits.try_enter(0, key.now + 2.2, key.wall), Reservation)


def test_estimate_that_was_too_high_elsewhere_is_given_back() -> None:
    key = Key(tokens_per_minute=600)
    key.limits.note_elsewhere(0, 500, key.now)
    key.limits.note_elsewhere(0, -400, key.now)
    assert key.left() == {"tokens_per_minute": 500}


def test_second_of_calls_is_divided_between_two_exchanges() -> None:
    key = Key(rate=20)
    key.limits.share(4, knows_others=True)
    entered = [key.limits.try_enter(0, key.now, key.wall) for _ in range(20)]
    assert sum(isinstance(found, Reservation) for found in entered) == 5
    key.limits.note_elsewhere(0, 0, key.now)
    entered = [key.limits.try_enter(0, key.now, key.wall) for _ in range(20)]
    assert sum(isinstance(found, Reservation) for found in entered) == 5, "none has come elsewhere"
    key.limits.share(1, knows_others=True)
    assert key.left()["rate"] == pytest.approx(10)


def test_client_below_its_rate_is_not_refused_because_others_have_called() -> None:
    """Calls of a second may come at once, also if they come to several gateways."""
    key = Key(rate=5)
    key.limits.share(8, knows_others=True)
    for _ in range(20):
        key.limits.note_elsewhere(1, 0, key.now)
        key.now += 0.25
        key.limits.note_elsewhere(0, 0, key.now)
        assert isinstance(key.limits.try_enter(0, key.now, key.wall), Reservation)
        key.now += 0.25


def test_each_gateway_has_a_part_while_none_knows_the_others() -> None:
    key = Key(rate=20, tokens_per_minute=600, tokens_per_day=1000)
    key.limits.try_enter(100, key.now, key.wall)
    key.limits.note_day_elsewhere(int(NOON // DAY_S), 300, key.wall)
    key.limits.share(3, knows_others=False)
    assert key.left()["tokens_per_minute"] == 100
    assert key.left()["tokens_per_day"] == 200
    key.limits.share(3, knows_others=False)
    assert key.left()["tokens_per_day"] == 200
    assert isinstance(key.limits.try_enter(50, key.now, key.wall), Reservation)
    assert key.left()["tokens_per_day"] == 150
    assert isinstance(key.limits.try_enter(151, key.now, key.wall), Exceeded)
    entered = [key.limits.try_enter(0, key.now + 100, key.wall) for _ in range(20)]
    assert sum(isinstance(found, Reservation) for found in entered) == 6
    key.limits.share(3, knows_others=True)
    assert key.left()["tokens_per_day"] == 550


def test_next_day_is_divided_from_its_beginning() -> None:
    key = Key(tokens_per_day=900)
    key.limits.try_enter(600, key.now, key.wall)
    key.limits.note_day_elsewhere(int(NOON // DAY_S), 300, key.wall)
    key.limits.share(3, knows_others=False)
    assert key.left() == {"tokens_per_day": 0}
    key.wall += DAY_S
    assert key.left() == {"tokens_per_day": 300}
    assert isinstance(key.limits.try_enter(300, key.now, key.wall), Reservation)
    assert key.left() == {"tokens_per_day": 0}


def test_share_of_the_calls_at_once() -> None:
    key = Key(concurrency=4)
    key.limits.slots = 2
    assert key.left() == {"concurrency": 2}
    entered = [key.limits.try_enter(0, key.now, key.wall) for _ in range(3)]
    assert [isinstance(found, Reservation) for found in entered] == [True, True, False]
    assert (key.limits.take_denied(), key.limits.take_denied()) == (1, 0)
    key.limits.slots = 9
    assert key.left() == {"concurrency": 2}
    assert key.limits.in_flight == 2


def test_one_call_may_enter_where_there_are_fewer_slots_than_gateways() -> None:
    """A client that makes one call at a time may send each to another gateway."""
    key = Key(concurrency=4)
    key.limits.slots = 0
    key.limits.share(4, knows_others=True)
    assert key.left() == {"concurrency": 0}
    key.limits.share(5, knows_others=True)
    assert key.left() == {"concurrency": 1}
    assert isinstance(key.limits.try_enter(0, key.now, key.wall), Reservation)
    assert isinstance(key.limits.try_enter(0, key.now, key.wall), Exceeded)


def test_use_tells_what_others_must_count() -> None:
    key = Key(rate=100, tokens_per_minute=10_000, tokens_per_day=10_000)
    day = int(NOON // DAY_S)
    key.limits.restore_day(day, 40, key.wall)
    reservation = key.limits.try_enter(500, key.now, key.wall)
    assert isinstance(reservation, Reservation)
    key.limits.try_take_rate(key.now, key.wall)
    assert key.limits.use() == ClientUse(2, 500, day, 500, 40)
    key.limits.leave(reservation, 20)
    assert key.limits.use(7) == ClientUse(2, 20, day, 20, 40, 7)
    key.limits.reset(key.now, key.wall)
    assert key.limits.use() == ClientUse(2, 20, day, 0, 0, 0, 1)


def test_calls_of_other_gateways_are_anticipated_and_then_corrected() -> None:
    """Else each gateway would let as many in as all of them may, and then none for a while."""
    key = Key(rate=10)
    key.limits.share(4, knows_others=True)
    for _ in range(50):  # one call here, three elsewhere
        key.limits.try_enter(0, key.now, key.wall)
        key.limits.note_elsewhere(3, 0, key.now)
        key.now += 0.4
    key.limits.try_enter(0, key.now, key.wall)
    assert key.limits.left(key.now, key.wall)[0].reset_s == pytest.approx(0.4), "one here, three elsewhere"
    assert key.limits.is_at_rate(key.now)
    key.limits.note_elsewhere(1, 0, key.now)
    assert key.limits.left(key.now, key.wall)[0].reset_s == pytest.approx(0.2), "there was only one elsewhere"
    assert not key.limits.is_at_rate(key.now + 0.3)


def test_count_that_falls_is_no_count() -> None:
    """A gateway may publish anything."""
    key = Key(rate=10)
    key.limits.share(2, knows_others=True)
    for _ in range(30):
        key.limits.try_enter(0, key.now, key.wall)
        key.limits.note_elsewhere(-1, 0, key.now)
        key.now += 0.2
    assert isinstance(key.limits.try_enter(0, key.now, key.wall), Reservation)


def test_count_that_jumps_stops_calls_for_a_minute_only() -> None:
    key = Key(rate=10)
    key.limits.share(2, knows_others=True)
    key.limits.note_elsewhere(10**11, 0, key.now)
    assert isinstance(key.limits.try_enter(0, key.now + 58, key.wall), Exceeded)
    assert isinstance(key.limits.try_enter(0, key.now + 60, key.wall), Reservation)


def test_gateway_that_is_alone_anticipates_no_calls() -> None:
    key = Key(rate=10)
    key.limits.share(2, knows_others=True)
    for _ in range(30):
        key.limits.try_enter(0, key.now, key.wall)
        key.limits.note_elsewhere(1, 0, key.now)
        key.now += 0.4
    key.limits.share(2, knows_others=False)
    key.now += 10.0
    key.limits.try_enter(0, key.now, key.wall)
    assert key.limits.left(key.now, key.wall)[0].reset_s == pytest.approx(0.2)
