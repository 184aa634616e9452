"""Rows of 429s and of accepted calls."""

from __future__ import annotations

from llm_guard.resilience.capacity.learned_rate import ResponseRows


def test_rows_end_with_the_other_kind_of_response() -> None:
    rows = ResponseRows()
    for at in (1.0, 2.0):
        rows.note_rate_limited(at)
    assert (rows.limited, rows.limited_since, rows.accepted) == (2, 1.0, 0)
    rows.note_accepted(3.0)
    assert (rows.limited, rows.accepted) == (0, 1)
    rows.note_rate_limited(4.0)
    assert (rows.limited, rows.limited_since, rows.accepted) == (1, 4.0, 0)


def test_accepted_call_that_entered_before_the_row_does_not_end_it() -> None:
    rows = ResponseRows()
    rows.note_rate_limited(2.0)
    rows.note_accepted(1.0)
    assert (rows.limited, rows.accepted) == (1, 0)


def test_429s_that_come_back_out_of_order_are_one_row() -> None:
    rows = ResponseRows()
    rows.note_rate_limited(3.0)
    rows.note_rate_limited(2.0)
    assert rows.limited_since == 2.0
    rows.note_accepted(2.5)
    assert (rows.limited, rows.accepted) == (0, 0), "a call that entered with one that got a 429 is no row"


def test_calls_that_entered_together_are_no_row_of_accepted_ones() -> None:
    """Half of a burst was refused, at once; the other half, accepted later, used to end a storm."""
    rows = ResponseRows()
    for _ in range(50):
        rows.note_rate_limited(1.0)
    for _ in range(50):
        rows.note_accepted(1.0)
    assert rows.accepted == 0


def test_calls_that_take_half_a_minute_are_rows_too() -> None:
    """One call in a hundred gets a 429: each accepted call has entered before the latest of them."""
    rows = ResponseRows()
    rows.note_rate_limited(100.0)
    for entered_at in range(70, 90):
        rows.note_accepted(float(entered_at))
    assert rows.accepted == 20
