"""Verdicts and summaries of joins; the benchmark itself measures the rate."""

from __future__ import annotations

import random

import pytest

from benchmarks.joins import PROMISED_ERRORS, Cell, Joins, measure, page, verdict
from tests.fakes.continuation_styles import HABITS, OTHERS, REPEATING, TEXTS, UNJOINABLE, Cut

EXACT, REFUSES = next(iter(REPEATING)), "apologises and refuses"
CUT = Cut(TEXTS["prose"], TEXTS["prose"][:400])


def test_there_are_eight_kinds_of_text_and_more_than_ten_habits() -> None:
    assert len(TEXTS) == 8
    assert len(HABITS) >= 10
    assert OTHERS.keys() >= UNJOINABLE


@pytest.mark.parametrize(
    ("came", "is_unjoinable", "found"),
    [
        (CUT.anchor + CUT.rest, False, "right"),
        (CUT.anchor + CUT.rest, True, "wrong"),
        (CUT.anchor + CUT.rest + "x", False, "wrong"),
        (CUT.rest, False, "error"),
        (CUT.anchor + " and", False, "wrong"),
    ],
)
def test_text_is_right_to_the_character_or_wrong_or_an_error(came: str, is_unjoinable: bool, found: str) -> None:
    assert verdict(random.Random(1), CUT, lambda _, __: came, is_unjoinable) == found


def test_few_cuts_of_each_kind_meet_the_targets() -> None:
    cells = [measure(kind, text, habit, 3) for kind, text in TEXTS.items() for habit in HABITS]
    assert not any(cell.wrong for cell in cells)
    assert {cell.cuts for cell in cells} == {3}


def test_targets_are_judged_over_all_cells() -> None:
    good, bad = Cell("prose", EXACT, 96, 4, 0), Cell("code", EXACT, 50, 50, 0)
    refused, wrong = Cell("code", REFUSES, 0, 100, 0), Cell("code", REFUSES, 0, 99, 1)
    assert Joins((good, refused)).broken == []
    assert Joins((good, refused)).errors_of_the_repeating == pytest.approx(0.04)
    assert Joins((good, wrong)).broken == [f"code, {REFUSES}: 1 wrong texts"]
    (promise,) = Joins((good, bad)).broken
    assert promise == f"27.0% honest errors where the anchor is repeated, against {PROMISED_ERRORS:.0%}"


def test_page_has_a_row_for_each_continuation_style() -> None:
    text = "\n".join(page(Joins(tuple(Cell(kind, habit, 5, 1, 0) for kind in TEXTS for habit in HABITS))))
    assert all(text.count(f"| {habit} |") == 2 for habit in HABITS)
    assert "**0 wrong**" in text
