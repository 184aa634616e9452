from __future__ import annotations

import pytest

from llm_guard.resilience.health.probe_policy import (
    ProbeHistory,
    ProbeHistorySnapshot,
    ProbeKind,
    ProbeOutcome,
    ProbeResult,
    delay_s,
    evaluate_completion,
    evaluate_health,
    evaluate_models,
    first_delay_s,
    may_end_opening,
    parse_path,
)

OK, FAILED, UNCLEAR = (
    ProbeResult("ok"),
    ProbeResult("failed", "it answered 503"),
    ProbeResult("unclear", "no descriptors"),
)
ANSWERED = ProbeResult("answered", "it answered 404")


@pytest.mark.parametrize(
    ("status", "said", "finding"),
    [
        (200, None, "ok"),
        (204, None, "ok"),
        (200, "ok", "ok"),
        (200, "OK", "ok"),
        (200, "pass", "ok"),
        (200, "UP", "ok"),
        (200, True, "ok"),
        (200, 200, "ok"),
        (200, "loading model", "failed"),
        (200, "error", "failed"),
        (200, "", "failed"),
        (200, 500, "failed"),
        (200, False, "failed"),
        (200, ["ok"], "failed"),
        (503, None, "failed"),
        (503, "ok", "failed"),
        (500, None, "failed"),
        (529, None, "failed"),
        (408, None, "failed"),
        (301, None, "answered"),
        (401, None, "answered"),
        (404, "ok", "answered"),
        (405, None, "answered"),
        (429, None, "answered"),
    ],
)
def test_health_page_is_judged_by_its_status_and_its_text(status: int, said: object, finding: ProbeOutcome) -> None:
    assert evaluate_health(status, said).finding == finding


def test_unhealthy_result_states_why() -> None:
    assert evaluate_health(503, None).why == "it answered 503 to the health page"
    assert evaluate_health(200, "loading model").why == "its health page reports 'loading model'"
    assert evaluate_health(200, "x" * 500).why == "its health page reports 'xxxxx" + "x" * 54
    assert evaluate_health(200, None).why == ""
    assert evaluate_models(404, None, ()).why == "it answered 404 to the list of models"
    assert evaluate_completion(502, False).why == "it answered 502 to a call for one token"


@pytest.mark.parametrize(
    ("listed", "wanted", "sight"),
    [
        ({"a", "b"}, ("a", "b"), ProbeResult("ok")),
        ({"llama3:latest"}, ("llama3",), ProbeResult("ok")),
        ({"a"}, (), ProbeResult("ok")),
        (None, (), ProbeResult("ok")),
        (None, ("a",), ProbeResult("answered", "its list of models cannot be read")),
        ({"a"}, ("a", "b"), ProbeResult("ok", "it does not list b")),
        ({"llama3:8b"}, ("llama3",), ProbeResult("answered", "it does not list llama3")),
        (set(), ("a", "b"), ProbeResult("answered", "it does not list a, b")),
        ({"a"}, ("a", "b", "c", "d", "e", "f"), ProbeResult("ok", "it does not list b, c, d and 2 more")),
    ],
)
def test_list_of_models_is_evidence_if_it_has_a_wanted_one(
    listed: set[str] | None, wanted: tuple[str, ...], sight: ProbeResult
) -> None:
    assert evaluate_models(200, listed, wanted) == sight
    assert evaluate_models(500, listed, wanted).finding == "failed"


def test_completion_must_be_one() -> None:
    assert evaluate_completion(200, True) == ProbeResult("ok")
    assert evaluate_completion(200, False).finding == "failed"
    assert evaluate_completion(400, False).finding == "answered"


# history


def noted(
    *sights: ProbeResult, succeeded: tuple[int, ...] = (), max_failures: int = 3
) -> tuple[list[bool], ProbeHistorySnapshot]:
    """Returns the news of each probe and the final snapshot. Calls succeeded before the probes in `succeeded`."""
    history = ProbeHistory()
    news = [
        history.note(result, max_failures, have_calls_succeeded=place in succeeded)
        for place, result in enumerate(sights)
    ]
    return news, history.snapshot(0.0)


def test_nothing_is_known_before_the_first_probe() -> None:
    assert noted() == ([], ProbeHistorySnapshot("unknown", 0, ""))


def test_that_all_is_well_is_no_news() -> None:
    assert noted(OK, OK) == ([False, False], ProbeHistorySnapshot("up", 0, ""))


def test_it_is_down_after_so_many_failures_in_a_row() -> None:
    news, seen = noted(OK, FAILED, FAILED, FAILED, FAILED)
    assert news == [False, False, False, True, False]
    assert seen == ProbeHistorySnapshot("down", 4, "it answered 503")


def test_it_may_be_down_from_the_first_probe_on() -> None:
    assert noted(FAILED, max_failures=1) == ([True], ProbeHistorySnapshot("down", 1, "it answered 503"))


def test_failures_that_are_not_in_a_row_do_not_count() -> None:
    assert noted(FAILED, FAILED, OK, FAILED, FAILED)[1] == ProbeHistorySnapshot("up", 2, "it answered 503")


@pytest.mark.parametrize("sight", [OK, ANSWERED])
def test_it_is_up_again_after_one_answer(sight: ProbeResult) -> None:
    news, seen = noted(FAILED, FAILED, FAILED, sight)
    assert news == [False, False, True, True]
    assert seen == ProbeHistorySnapshot("up", 0, sight.why)


def test_probe_without_a_result_changes_only_the_shown_detail() -> None:
    assert noted(FAILED, FAILED, UNCLEAR)[1] == ProbeHistorySnapshot("unknown", 2, "no descriptors")
    assert noted(FAILED, FAILED, FAILED, UNCLEAR)[1] == ProbeHistorySnapshot("down", 3, "no descriptors")
    assert noted(UNCLEAR)[1] == ProbeHistorySnapshot("unknown", 0, "no descriptors")


def test_calls_that_succeed_count_for_more_than_probes_that_fail() -> None:
    news, seen = noted(FAILED, FAILED, FAILED, FAILED, FAILED, succeeded=(2,))
    assert news == [False] * 5
    assert seen.failures == 2
    assert noted(FAILED, succeeded=(0,))[1] == ProbeHistorySnapshot("up", 0, "calls succeed, although it answered 503")


def test_calls_that_succeed_end_a_down_state() -> None:
    news, seen = noted(FAILED, FAILED, FAILED, FAILED, succeeded=(3,))
    assert news == [False, False, True, True]
    assert seen.state == "up"


# effects and schedule


@pytest.mark.parametrize(
    ("kind", "sight", "failures_before", "may"),
    [
        ("completion", OK, 0, True),
        ("health", OK, 0, False),
        ("models", OK, 0, False),
        ("health", OK, 1, True),
        ("models", OK, 1, True),
        ("health", ANSWERED, 3, False),
        ("completion", ANSWERED, 3, False),
        ("completion", FAILED, 3, False),
    ],
)
def test_open_breaker_is_probed_early_after_a_good_health_probe(
    kind: ProbeKind, sight: ProbeResult, failures_before: int, may: bool
) -> None:
    assert may_end_opening(kind, sight, failures_before) is may


def test_first_probes_spread_over_an_interval() -> None:
    assert [first_delay_s(10.0, u) for u in (0.0, 0.5, 0.99)] == [0.0, 5.0, 9.9]


def test_interval_is_spread_in_both_directions() -> None:
    assert [delay_s(10.0, 0.1, u) for u in (0.0, 0.5, 1.0)] == [9.0, 10.0, 11.0]
    assert delay_s(10.0, 0.0, 0.9) == 10.0


# settings


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models?x=1", "/a%20b"])
def test_path_is_taken_as_it_is(path: str) -> None:
    assert parse_path(path) == path


@pytest.mark.parametrize("path", ["", "health", "http://h/x", "/a b", "/a#b", "/a\r\nX: y", "/ü", 1, None, "/a\n"])
def test_invalid_path_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match="write one that begins with /, such as /health"):
        parse_path(path)
