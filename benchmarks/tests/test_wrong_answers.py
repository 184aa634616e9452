"""The matrix of wrong answers: its cases, and when a row holds its promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.first_bytes import ANSWERS, Delays
from benchmarks.wrong_answers import Judged, Wrong, page
from tests.fakes.keep_alives import ANYWHERE, KEEP_ALIVES
from tests.fakes.wrong_answers import ENDPOINTS, STREAMED, hang_cases, wrong_cases

BEFORE, AFTER = list(hang_cases())[:2]
HELD = Wrong(BEFORE, 200, True, True, "timeout", 1, 0)
BEGUN = Wrong(AFTER, 200, True, False, "timeout", 1, 0)


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.name in STREAMED], ids=lambda each: each.name)
def test_every_streamed_endpoint_hangs_behind_each_keep_alive(endpoint: object) -> None:
    cases = [case for case in hang_cases() if case.endpoint is endpoint]
    kinds = len(ANYWHERE) + len(KEEP_ALIVES[cases[0].endpoint.path.removeprefix("/v1/")])
    assert [case.has_begun for case in cases] == [False, True] * kinds
    assert len({case.form for case in cases}) == len(cases)


def test_each_endpoint_has_wrong_answers() -> None:
    assert {case.endpoint.name for case in wrong_cases()} == {endpoint.name for endpoint in ENDPOINTS} | {"moderations"}


def test_hang_is_held_by_an_error_event_or_by_the_second_deployment() -> None:
    assert HELD.is_held
    assert BEGUN.is_held
    assert not replace(HELD, is_second_tried=False).is_held
    assert not replace(BEGUN, is_second_tried=True).is_held
    assert not replace(BEGUN, is_right=False).is_held
    assert not replace(HELD, found="truncated").is_held


def test_late_first_byte_misses_the_target() -> None:
    in_time, late = Delays(ANSWERS[0], [0.001, 0.049], [0.001]), Delays(ANSWERS[0], [0.001, 0.051], [0.001])
    assert Judged([], {}, [in_time]).broken == []
    assert Judged([], {}, [in_time, late]).broken == ["first byte of speech after 51 ms"]


def test_page_shows_what_the_client_gets() -> None:
    delays = [Delays(ANSWERS[0], [0.001, 0.002, 0.049], [0.001])]
    lines = page(Judged([HELD, BEGUN, replace(BEGUN, is_right=False)], {}, delays))
    rows = [line.split(" | ")[2] for line in lines if line.startswith("| chat")]
    assert rows == ["the second's answer", "an error event", "THE WRONG ANSWER"]
    assert lines[-1] == "| speech | audio/mpeg | 2.0 ms | 49.0 ms | 1.0 ms |"
