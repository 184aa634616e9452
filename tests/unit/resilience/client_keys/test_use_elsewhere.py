"""What other gateways have used of a key's limits: since the last time, and on this day."""

from __future__ import annotations

from llm_guard.resilience.client_keys.limit_states import ClientUse
from llm_guard.resilience.client_keys.use_elsewhere import UseElsewhere

DAY = 20_000


def note(elsewhere: UseElsewhere, **uses: ClientUse) -> tuple[int, int]:
    return elsewhere.note(uses, DAY)


def use(calls: int = 0, tokens: int = 0, day_tokens: int = 0, restored: int = 0, gone: int = 0) -> ClientUse:
    return ClientUse(calls, tokens, DAY, day_tokens, restored, gone)


def test_only_what_was_used_since_the_last_time_counts() -> None:
    elsewhere = UseElsewhere()
    assert note(elsewhere, a=use(100, 1000)) == (0, 0)
    assert note(elsewhere, a=use(103, 1500), b=use(7, 70)) == (10, 570), "b has begun since"
    assert note(elsewhere, a=use(104, 1400), b=use(9, 90)) == (3, -80)
    assert note(elsewhere, b=use(10, 90)) == (1, 0)


def test_gateway_that_was_away_does_not_begin_anew() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(100, 1000))
    note(elsewhere)
    assert note(elsewhere, a=use(102, 1020)) == (2, 20)


def test_what_was_used_without_a_store_is_not_counted_afterwards() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(100, 1000))
    elsewhere.pause()
    assert note(elsewhere, a=use(900, 9000)) == (0, 0)
    assert note(elsewhere, a=use(901, 9010)) == (1, 10)


def test_tokens_of_the_day_count_until_its_end_even_if_their_gateway_has_left() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(day_tokens=50), b=use(day_tokens=30))
    assert (elsewhere.day_tokens(DAY), elsewhere.day_gone(DAY)) == (80, 0)
    note(elsewhere, b=use(day_tokens=35))
    assert (elsewhere.day_tokens(DAY), elsewhere.day_gone(DAY)) == (85, 50)
    note(elsewhere, a=use(day_tokens=60), b=use(day_tokens=35))
    assert (elsewhere.day_tokens(DAY), elsewhere.day_gone(DAY)) == (95, 0)
    assert elsewhere.day_tokens(DAY + 1) == 0


def test_gateway_that_was_restarted_does_not_count_twice() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(day_tokens=50))
    for number in range(3):  # each process restores what those before it have used
        note(elsewhere, **{f"again{number}": use(day_tokens=10, restored=50 + 10 * number)})
        assert elsewhere.day_tokens(DAY) == 60 + 10 * number


def test_tokens_that_a_gateway_has_restored_count_also_if_its_predecessor_was_not_seen() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(day_tokens=10, restored=50))
    assert elsewhere.day_tokens(DAY) == 60


def test_gateways_that_left_on_another_day_are_forgotten() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(day_tokens=50))
    note(elsewhere)
    assert elsewhere.day_gone(DAY) == 50
    elsewhere.note({}, DAY + 1)
    assert elsewhere.day_gone(DAY) == 0


def test_reset_forgets_what_gateways_that_left_have_used() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(day_tokens=50))
    note(elsewhere)
    elsewhere.follow_reset(1)
    assert elsewhere.day_tokens(DAY) == 0


def test_gateway_that_came_later_is_told_of_those_that_have_left() -> None:
    elsewhere = UseElsewhere()
    note(elsewhere, a=use(day_tokens=5, gone=200), b=use(day_tokens=5, gone=190))
    assert (elsewhere.day_gone(DAY), elsewhere.day_tokens(DAY)) == (200, 210)
