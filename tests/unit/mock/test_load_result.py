from __future__ import annotations

import json

import pytest

from llm_guard.mock.load import LoadPlan
from llm_guard.mock.load_result import FinishedCall, percentiles, sum_up


def test_percentiles_are_by_nearest_rank() -> None:
    found = percentiles([float(n) for n in range(100, 0, -1)])
    assert (found.count, found.p50, found.p90, found.p99, found.max) == (100, 50.0, 90.0, 99.0, 100.0)
    assert percentiles([3.0]).p99 == 3.0
    assert percentiles([]).max == 0.0


def test_unsent_calls_lower_the_share_but_have_no_latency() -> None:
    ended = [
        FinishedCall("ok", 1.0, 200, 0.5),
        FinishedCall("http_503", 2.0, 503),
        FinishedCall("not_sent", 0.0),
        FinishedCall("timeout", 9.0),
    ]
    result = sum_up(ended, duration_s=2.0)
    assert (result.calls, result.ok, result.success_share, result.calls_per_s) == (4, 1, 0.25, 2.0)
    assert result.statuses == {200: 1, 503: 1}
    assert result.errors == {"http_503": 1, "not_sent": 1, "timeout": 1}
    assert result.latency.max == 1.0
    assert (result.failed_latency.count, result.failed_latency.max) == (2, 9.0)
    assert (result.first_token.count, result.first_token.max) == (1, 0.5)


def test_a_result_is_json() -> None:
    assert json.loads(json.dumps(sum_up([FinishedCall("ok", 1.0, 200)], 1.0).as_dict()))["statuses"] == {"200": 1}


def test_an_empty_run_has_no_success() -> None:
    assert sum_up([], 0.0).success_share == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()}, {"rate_per_s": 0}, {"concurrency": 0}, {"seconds": 1, "calls": 1}, {"calls": None},
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_run_is_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"url": "http://x", "models": ("m",), "rate_per_s": 1, "calls": 1} | wrong
    with pytest.raises(ValueError, match="a load needs"):
        LoadPlan(**fields)  # type: ignore[arg-type]


def test_a_plan_of_seconds_makes_as_many_calls_as_its_rate() -> None:
    assert LoadPlan("http://x", ("m",), rate_per_s=20, seconds=1.5).planned() == 30
