"""The arithmetic of the storm matrix: a wrong figure would praise or blame without reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.storm_matrix import fallbacks, report, slow
from benchmarks.storm_matrix.cells import BEFORE_S, NEIGHBOUR, STORMY, Cell, StormyProvider, cells
from benchmarks.storm_matrix.fallbacks import Flaw, Substitution
from benchmarks.storm_matrix.measure import Storm, count, measure, percentile, reason, window_of
from benchmarks.storm_matrix.run import Matrix, chosen_cells, run_cells
from benchmarks.storm_matrix.slow import CASES, SlowCase, Slowness
from benchmarks.virtual.clients import ClientCall, Outcome
from benchmarks.virtual.provider import Request
from benchmarks.virtual.world import Played

CELL = Cell(16.0, 5.0, "429", None)
WELL_AT = BEFORE_S + 16.0


def call(at: float, outcome: Outcome = "served", took_s: float = 0.2, model: str = STORMY) -> ClientCall:
    status = 200 if outcome == "served" else 429
    return ClientCall(0, model, at, at + took_s, outcome, status, code='{"error": {"message": "wait 3 s", "a": 1}}')


def request(at: float, status: int = 200, model: str = STORMY) -> Request:
    return Request(at, "https://provider.example", model, 0, status=status)


def counted(cell: Cell, calls: list[ClientCall], requests: list[Request]) -> Storm:
    storm = Storm(cell)
    count(storm, Played(calls, requests), window_of(cell, 0.0))
    return storm


# counting


def test_only_calls_of_the_window_count() -> None:
    at = [WELL_AT + 9.9, WELL_AT + 10.1, WELL_AT + 69.9, WELL_AT + 70.1]
    storm = counted(CELL, [call(at[0], "refused"), call(at[1]), call(at[2], "refused"), call(at[3], "refused")], [])
    assert (storm.calls, storm.served_share) == (2, 0.5)
    assert storm.latencies_s == pytest.approx([0.2])
    assert storm.broken == ["429, no hint, 16 s, 5/s: 50.0% served after it"]


@pytest.mark.parametrize(
    ("hint_s", "last_hint_at", "begins_at"),
    [
        (None, WELL_AT, WELL_AT + 10.0),
        (2, WELL_AT - 5.0, WELL_AT + 10.0),
        (30, WELL_AT - 5.0, WELL_AT + 35.0),
        (86400, WELL_AT - 1.0, WELL_AT + 69.0),
    ],
)
def test_the_window_begins_after_the_storm_and_its_last_hint(
    hint_s: int | None, last_hint_at: float, begins_at: float
) -> None:
    cell = replace(CELL, hint_s=hint_s)
    assert window_of(cell, last_hint_at) == (begins_at, begins_at + 60.0)
    assert cell.loads[0].ends_at >= begins_at + 60.0, "calls come to the window's end"


def test_requests_are_counted_in_the_storm_and_after_it() -> None:
    calls = [call(BEFORE_S - 1.0), call(BEFORE_S + 1.0, "refused"), call(BEFORE_S + 2.0, "refused")]
    storm = counted(
        CELL, calls, [request(19.0), *[request(21.0, 429)] * 3, request(WELL_AT, 429), *[request(WELL_AT + 1.0)] * 3]
    )
    assert (storm.requests_per_call, storm.refused_share) == (1.5, 0.25)
    assert storm.broken == ["429, no hint, 16 s, 5/s: 25.0% of the requests after it answered 429"]


def test_the_other_model_is_counted_by_itself_from_the_storm_on() -> None:
    cell = replace(CELL, error="quota")
    calls = [call(1.0, "refused", model=NEIGHBOUR), call(25.0, "refused", model=NEIGHBOUR), call(50.0, model=NEIGHBOUR)]
    storm = counted(cell, calls, [request(WELL_AT + 1.0, 429, NEIGHBOUR)])
    assert (storm.neighbour_share, storm.calls, storm.after_requests) == (0.5, 0, 0)
    assert storm.broken == ["quota, no hint, 16 s, 5/s: 50.0% of the other model's calls served"]


def test_reasons_are_grouped_without_their_figures() -> None:
    assert reason(call(1.0, "refused")) == 'refused 429: wait # s", "a": #'


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 0.99) is None
    assert percentile([float(value) for value in range(1, 101)], 0.99) == 100.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


# the provider


def test_provider_storms_and_then_accepts_the_offered_load() -> None:
    provider = StormyProvider(replace(CELL, hint_s=30), iter(()))
    assert provider.answer(request(BEFORE_S - 0.1)).status == 200
    stormy = provider.answer(request(BEFORE_S))
    assert (stormy.status, ("retry-after", "30") in stormy.headers) == (429, True)
    assert provider.answer(request(BEFORE_S, model=NEIGHBOUR)).status == 200
    assert provider.last_hint_at == pytest.approx(BEFORE_S, abs=0.1)
    statuses = [provider.answer(request(WELL_AT + place / 5.0)).status for place in range(300)]
    assert statuses == [200] * 300


def test_the_provider_refuses_a_flood_after_the_storm() -> None:
    provider = StormyProvider(CELL, iter(()))
    statuses = [provider.answer(request(WELL_AT)).status for _ in range(50)]
    assert (statuses.count(200), statuses.count(429)) == (20, 30)


# the cells


def test_the_matrix_has_every_combination_once() -> None:
    chosen = list(cells())
    assert len(chosen) == len(set(chosen))
    plain = chosen_cells((), (), (), ())
    assert len(plain) == 4 * 4 * 4 * 6
    assert set(plain) <= set(chosen)


def test_cells_are_chosen_by_their_values() -> None:
    (cell,) = chosen_cells((16.0,), (5.0,), ("429",), ("none",))
    assert cell == CELL


def test_cells_keep_their_order_and_are_reported_when_ready() -> None:
    chosen = [Cell(5.0, 0.5, "503", None), Cell(5.0, 5.0, "503", None)]
    lines: list[str] = []
    storms = run_cells(lines.append, chosen, processes=1)
    assert [storm.cell for storm in storms] == chosen
    assert [line.partition(":")[0] for line in lines] == [
        "1/2 503, no hint, 5 s, 0.5/s",
        "2/2 503, no hint, 5 s, 5/s",
    ]


def test_a_provider_that_is_always_well_is_always_served() -> None:
    """The instrument itself loses no calls."""
    storm = measure(Cell(5.0, 5.0, "503", None, share=0.0))
    assert (storm.served_share, storm.requests_per_call, storm.refused_share) == (1.0, 1.0, 0.0)
    assert storm.p99_s == pytest.approx(0.2)


# fallbacks and slow answers


def test_a_substitution_is_judged_by_each_of_its_bounds() -> None:
    flaw = Flaw("429", 1, 5.0)
    assert Substitution(flaw, 100, 0.99, 0.05, 4.0, 1.1).broken == []
    assert [len(each.broken) for each in (
        Substitution(flaw, 100, 0.98, 0.05, 4.0, 1.1),
        Substitution(flaw, 100, 0.99, 0.06, 4.0, 1.1),
        Substitution(flaw, 100, 0.99, 0.05, 4.1, 1.1),
    )] == [1, 1, 1]  # fmt: skip


def test_responses_of_the_fallback_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallbacks, "SECONDS", 20.0)
    monkeypatch.setattr(fallbacks, "FAILING_SHARE", 1.0)
    found = fallbacks.measure(Flaw("503", None, 5.0))
    assert (found.served, found.by_fallback) == (1.0, 1.0)
    monkeypatch.setattr(fallbacks, "FAILING_SHARE", 0.0)
    found = fallbacks.measure(Flaw("503", None, 5.0))
    assert (found.served, found.by_fallback, found.requests_per_call) == (1.0, 0.0, 1.0)
    assert found.p99_s == pytest.approx(0.5)


def test_slow_calls_are_distinguished_from_quick_ones() -> None:
    case = SlowCase("", False, CASES[0].answer, quick_per_slow=9, quick_first=5)
    assert [number for number in range(40) if case.is_slow(number)] == [5, 15, 25, 35]
    assert case.calls == 2005


def test_slow_answers_take_150_to_500_s() -> None:
    delays = sorted(CASES[0].answer(number).delay_s for number in range(slow.COUNT))
    assert (delays[0], delays[-1]) == (150.0, 500.0)
    assert len(set(delays)) == slow.COUNT


def test_answers_that_are_quick_enough_are_neither_lost_nor_repeated() -> None:
    case = SlowCase("", False, lambda _: CASES[0].answer(0), quick_per_slow=1)
    quick = replace(case, answer=lambda number: replace(CASES[0].answer(number), delay_s=1.0))
    found = slow.measure(quick)
    assert (found.slow, found.slow_lost, found.slow_repeated, found.quick_lost, found.broken) == (200, 0, 0, 0, [])


# the page


def test_results_are_written(tmp_path: Path) -> None:
    storms = [Storm(cell, calls=100, served=94 if cell == CELL else 100) for cell in cells()]
    matrix = Matrix(
        storms, [Substitution(Flaw("429", 1, 5.0), 100, 1.0, 0.3, 0.5, 1.1)], [Slowness(CASES[0], 200, 3, 0, 0, 0, {})]
    )
    assert len(matrix.broken) == 3
    report.write(matrix, tmp_path, {"commit": "abc1234"})
    page = (tmp_path / "storm-matrix.md").read_text()
    assert "Worst cell: **94.0%** served (429, no hint, 16 s, 5/s). Below 95%: 1 of 488 cells" in page
    assert page.count("does not hold") == 3
    content = json.loads((tmp_path / "storm-matrix.json").read_text())
    assert len(content["storms"]) == 488
    assert (tmp_path / "storm-matrix.png").stat().st_size > 10_000
