from __future__ import annotations

import pytest

from llm_guard.resilience.alerts.baseline import Mean
from llm_guard.resilience.alerts.rules import (
    CallsRefusedSettings,
    EngineRestartsSettings,
    EnginesDownSettings,
    FailureSpikeSettings,
    LatencySettings,
    LoopLagSettings,
    SuccessRateSettings,
    evaluate_breaker,
    evaluate_budget,
    evaluate_credential,
    evaluate_down,
    evaluate_engine,
    evaluate_engines,
    evaluate_failures,
    evaluate_lag,
    evaluate_latency,
    evaluate_refusals,
    evaluate_reload,
    evaluate_restarts,
    evaluate_success,
    percent,
    seconds,
)


def outcomes(good: int, bad: int) -> list[bool]:
    return [True] * good + [False] * bad


@pytest.mark.parametrize(
    ("good", "bad", "verdict"),
    [(94, 6, "bad"), (95, 5, "between"), (96, 4, "good"), (100, 0, "good"), (18, 2, "bad"), (0, 20, "bad")],
)
def test_success_rate_fires_below_its_threshold_and_resolves_a_fifth_above(good: int, bad: int, verdict: str) -> None:
    finding = evaluate_success("gpt", outcomes(good, bad), SuccessRateSettings())
    assert finding is not None
    assert (finding.verdict, finding.threshold) == (verdict, 0.95)


def test_few_calls_prove_nothing_about_the_success_rate() -> None:
    assert evaluate_success("gpt", outcomes(0, 19), SuccessRateSettings()) is None
    assert evaluate_success("gpt", outcomes(0, 5), SuccessRateSettings(min_calls=5)) is not None


@pytest.mark.parametrize(("model", "verdict"), [("gpt", "bad"), ("llama", "good"), ("wild", "between")])
def test_model_may_have_a_success_rate_of_its_own(model: str, verdict: str) -> None:
    settings = SuccessRateSettings(models={"llama": 0.5, "wild": 0.8})
    finding = evaluate_success(model, outcomes(83, 17), settings)
    assert finding is not None
    assert finding.verdict == verdict


def test_success_rate_of_zero_is_never_too_low() -> None:
    finding = evaluate_success("gpt", outcomes(0, 100), SuccessRateSettings(models={"gpt": 0.0}))
    assert finding is not None
    assert finding.verdict != "bad"


@pytest.mark.parametrize(
    ("calls", "refused", "verdict"),
    [
        (10, 10, "bad"), (9, 9, "between"), (20, 10, "bad"), (21, 10, "between"), (200, 99, "between"),
        (200, 50, "good"), (200, 51, "between"), (200, 0, "good"), (0, 0, "good"), (1, 1, "between"),
    ],
)  # fmt: skip
def test_refusals_fire_at_half_of_the_calls_and_resolve_at_a_quarter(calls: int, refused: int, verdict: str) -> None:
    finding = evaluate_refusals("gpt", calls, {"breaker": refused, "limit": 0}, CallsRefusedSettings(), 10.0)
    assert (finding.verdict, finding.threshold) == (verdict, 0.5)


def test_refusals_are_listed_by_cause_with_the_most_frequent_first() -> None:
    finding = evaluate_refusals("gpt", 80, {"breaker": 10, "limit": 0, "cooldown": 50}, CallsRefusedSettings(), 10.0)
    assert finding.summary == (
        "gpt: the gateway refused 60 of 80 calls within 10 s: 50 by cooldown, 10 by breaker (threshold 50 %)"
    )
    assert finding.value == 0.75


@pytest.mark.parametrize(("recent_s", "verdict"), [(1.51, "bad"), (1.5, "between"), (1.26, "between"), (1.25, "good")])
def test_latency_fires_at_half_as_much_again_and_resolves_halfway_back(recent_s: float, verdict: str) -> None:
    finding = evaluate_latency("gpt", "first token", Mean(recent_s * 100, 100), Mean(1000, 1000), LatencySettings())
    assert finding is not None
    assert (finding.verdict, finding.threshold) == (verdict, 1.5)
    assert finding.value == pytest.approx(recent_s)


@pytest.mark.parametrize(("recent", "usual"), [(49, 1000), (1000, 49), (0, 0)])
def test_few_responses_now_or_before_prove_nothing_about_latency(recent: int, usual: int) -> None:
    assert evaluate_latency("gpt", "", Mean(9.0 * recent, recent), Mean(1.0 * usual, usual), LatencySettings()) is None


def test_answers_that_took_no_time_are_no_usual() -> None:
    assert evaluate_latency("gpt", "", Mean(100, 100), Mean(0.0, 100), LatencySettings()) is None


def test_model_may_have_a_latency_of_its_own() -> None:
    settings = LatencySettings(models={"slow": 2.0})
    both = [evaluate_latency(name, "", Mean(200, 100), Mean(100, 100), settings) for name in ("gpt", "slow")]
    assert [finding.verdict for finding in both if finding is not None] == ["bad", "good"]


@pytest.mark.parametrize(
    ("open_count", "has_opened", "verdict"), [(1, False, "bad"), (0, True, "bad"), (0, False, "good"), (2, True, "bad")]
)
def test_breaker_is_bad_while_it_is_open_or_has_just_been(open_count: int, has_opened: bool, verdict: str) -> None:
    assert evaluate_breaker("a/x", open_count, 2, has_opened).verdict == verdict


@pytest.mark.parametrize(
    ("failures", "usual", "verdict"),
    [
        (20, Mean(0, 3600), "bad"),
        (19, Mean(0, 3600), "between"),
        (10, Mean(0, 3600), "good"),
        (20, Mean(0, 0), "bad"),
        (179, Mean(3600, 3600), "between"),
        (180, Mean(3600, 3600), "bad"),
        (90, Mean(3600, 3600), "good"),
    ],
)
def test_failures_spike_at_three_times_the_usual_and_twenty_a_minute(failures: int, usual: Mean, verdict: str) -> None:
    assert evaluate_failures("a/x", Mean(failures, 60), usual, FailureSpikeSettings()).verdict == verdict


def test_short_past_does_not_make_failures_usual() -> None:
    few_minutes = Mean(60, 60)  # one call per second for a minute
    assert evaluate_failures("a/x", Mean(60, 60), few_minutes, FailureSpikeSettings()).verdict == "bad"


@pytest.mark.parametrize(
    ("tokens", "failure_share", "verdict"),
    [(0.9, 1.0, "bad"), (1.0, 1.0, "good"), (0.0, 0.0, "good"), (0, 0.001, "good")],
)
def test_budget_is_exhausted_only_while_retries_are_needed(tokens: float, failure_share: float, verdict: str) -> None:
    assert evaluate_budget("a/x", tokens, failure_share).verdict == verdict


def test_credential_engine_and_reload_are_bad_or_good() -> None:
    assert evaluate_credential("openai", 30.0, "auth").verdict == "bad"
    assert "auth" in evaluate_credential("openai", 30.0, "auth").summary
    assert evaluate_credential("openai", 0.0, "").verdict == "good"
    renewal = evaluate_credential("vertex", 0.0, "", problem="RefreshError: invalid_grant")
    assert renewal.verdict == "bad"
    assert "RefreshError: invalid_grant" in renewal.summary
    assert "is in cooldown" in evaluate_credential("vertex", 1.0, "auth", problem="x").summary
    assert [evaluate_engine("vllm", each).verdict for each in (True, False)] == ["bad", "good"]
    assert [evaluate_reload(each).verdict for each in (False, True)] == ["bad", "good"]


@pytest.mark.parametrize(("count", "verdict"), [(6, "bad"), (5, "between"), (3, "between"), (2, "good"), (0, "good")])
def test_restarts_resolve_at_half_of_their_threshold(count: int, verdict: str) -> None:
    assert evaluate_restarts({"a": count}, EngineRestartsSettings()).verdict == verdict


def test_restarts_name_the_engines_with_the_most() -> None:
    finding = evaluate_restarts({f"e{number}": number for number in range(1, 8)}, EngineRestartsSettings())
    assert "28 times within a minute: 7 of e7, 6 of e6, 5 of e5, 4 of e4, 3 of e3 and 2 more (" in finding.summary


@pytest.mark.parametrize(
    ("down", "count", "verdict"), [(1, 100, "good"), (1, 99, "bad"), (3, 300, "good"), (4, 300, "bad"), (0, 0, "good")]
)
def test_more_than_one_percent_of_the_engines_down_is_bad(down: int, count: int, verdict: str) -> None:
    assert evaluate_engines(["e"] * down, count, EnginesDownSettings()).verdict == verdict


def test_engine_is_down_with_its_reason() -> None:
    finding = evaluate_down("vllm", "failed: it ended with exit code 3")
    assert (finding.verdict, finding.summary) == ("bad", "vllm is down (failed: it ended with exit code 3)")
    assert evaluate_down("vllm", None).verdict == "good"


@pytest.mark.parametrize(("lag_s", "verdict"), [(0.51, "bad"), (0.5, "between"), (0.25, "good"), (0.0, "good")])
def test_lag_resolves_at_half_of_its_threshold(lag_s: float, verdict: str) -> None:
    assert evaluate_lag(lag_s, LoopLagSettings()).verdict == verdict


def test_numbers_are_written_for_people() -> None:
    assert (percent(0.95), percent(0.9667), percent(0)) == ("95 %", "96.7 %", "0 %")
    assert (seconds(0.85), seconds(2.5), seconds(300)) == ("850 ms", "2.5 s", "5 min")
