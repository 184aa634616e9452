from __future__ import annotations

from math import inf

import pytest

from llm_guard.resilience.health.status import (
    ENOUGH,
    NONE_OF,
    HealthSettings,
    HealthSignals,
    HealthState,
    HealthVerdict,
    evaluate_refusals,
    judge,
    sum_up,
    with_refusals,
)

SETTINGS = HealthSettings(p95=10.0, first_token_p95=1.0, failure_share=0.1)


def test_unused_deployment_is_healthy() -> None:
    assert judge(HealthSignals(), SETTINGS).health == "healthy"
    assert judge(HealthSignals(), SETTINGS).why == ()


@pytest.mark.parametrize(
    ("signs", "why"),
    [
        (HealthSignals(state="open"), "its breaker is open"),
        (HealthSignals(state="forced_open"), "its breaker is forced open"),
        (HealthSignals(host="open"), "its upstream's breaker is open"),
        (HealthSignals(host="forced_open"), "its upstream's breaker is forced open"),
        (HealthSignals(attempts=NONE_OF, failures=NONE_OF), f"none of {NONE_OF} attempts within a minute succeeded"),
        (
            HealthSignals(calls=20, refused={"cooldown": 18}),
            "the gateway refused 18 of 20 calls within a minute: 18 by cooldown",
        ),
        (HealthSignals(looks="it answered 503"), "its probes find it down: it answered 503"),
    ],
)
def test_outages_are_unhealthy(signs: HealthSignals, why: str) -> None:
    assert (judge(signs, SETTINGS).health, judge(signs, SETTINGS).why) == ("unhealthy", (why,))


def test_engine_that_was_given_up_is_failed_despite_other_reasons() -> None:
    verdict = judge(HealthSignals(state="open", given_up="it did not start"), SETTINGS)
    assert verdict.health == "failed"
    assert verdict.why == ("its engine was given up: it did not start", "its breaker is open")


@pytest.mark.parametrize(
    ("signs", "why"),
    [
        (HealthSignals(state="half_open"), "its breaker is half-open"),
        (HealthSignals(host="half_open"), "its upstream's breaker is half-open"),
        (HealthSignals(attempts=ENOUGH, failures=2), "2 of 20 attempts within a minute failed"),
        (HealthSignals(held_s=11.6), "its provider sent a Retry-After: no calls for another 12 s"),
        (HealthSignals(rests_s=29.9), "its credential is in cooldown for another 30 s"),
        (HealthSignals(quota_s=29.9), "its quota is exhausted, in cooldown for another 30 s"),
        (HealthSignals(named_wait_s=59.9), "its provider sent a Retry-After, in cooldown for another 60 s"),
        (
            HealthSignals(calls=20, refused={"limit": 4, "breaker": 6}),
            "the gateway refused 10 of 20 calls within a minute: 6 by breaker, 4 by limit",
        ),
        (HealthSignals(p95_s=10.01), "p95 is 10 s, above its budget of 10 s"),
        (HealthSignals(p95_s=12.34), "p95 is 12.3 s, above its budget of 10 s"),
        (HealthSignals(p95_s=inf), "p95 is longer than its timeouts, above its budget of 10 s"),
        (HealthSignals(first_token_p95_s=1.5), "p95 to the first token is 1.5 s, above its budget of 1 s"),
        (HealthSignals(hold="drained by an operator"), "drained by an operator"),
    ],
)
def test_weaknesses_are_degraded(signs: HealthSignals, why: str) -> None:
    assert (judge(signs, SETTINGS).health, judge(signs, SETTINGS).why) == ("degraded", (why,))


@pytest.mark.parametrize(
    "signs",
    [
        HealthSignals(state="forced_closed"),
        HealthSignals(state="metrics_only"),
        HealthSignals(state="disabled"),
        HealthSignals(attempts=ENOUGH - 1, failures=ENOUGH - 3),
        HealthSignals(attempts=NONE_OF - 1, failures=NONE_OF - 1),
        HealthSignals(attempts=100, failures=9),
        HealthSignals(p95_s=10.0, first_token_p95_s=1.0),
    ],
)
def test_deployment_without_enough_evidence_is_healthy(signs: HealthSignals) -> None:
    assert judge(signs, SETTINGS).health == "healthy"


def test_without_a_budget_no_latency_is_too_long() -> None:
    assert judge(HealthSignals(p95_s=inf, first_token_p95_s=inf), HealthSettings()).health == "healthy"


def test_share_of_nothing_allowed_is_not_reached_by_no_failure() -> None:
    assert judge(HealthSignals(attempts=100), HealthSettings(failure_share=0.0)).health == "healthy"
    assert judge(HealthSignals(attempts=100, failures=1), HealthSettings(failure_share=0.0)).health == "degraded"


def test_worst_reasons_are_first_and_none_is_left_out() -> None:
    verdict = judge(
        HealthSignals(state="open", host="open", attempts=50, failures=10, hold="cordoned by an operator"), SETTINGS
    )
    assert verdict.why == (
        "its breaker is open",
        "its upstream's breaker is open",
        "10 of 50 attempts within a minute failed",
        "cordoned by an operator",
    )


# overall status


def test_all_are_healthy_when_each_is() -> None:
    assert sum_up({"a": "healthy", "b": "healthy"}, ["a"]).health == "healthy"
    assert sum_up({}, []).health == "healthy"


def test_unhealthy_deployment_degrades_the_whole_and_is_named() -> None:
    verdict = sum_up({"a": "unhealthy", "b": "healthy", "c": "degraded"}, ["a", "b"])
    assert verdict.health == "degraded"
    assert verdict.why == ("1 of 3 deployments is unhealthy: a", "1 of 3 deployments is degraded: c")


def test_whole_is_unhealthy_when_all_that_are_in_use_are() -> None:
    verdict = sum_up({"a": "unhealthy", "b": "healthy"}, ["a"])
    assert verdict.health == "unhealthy"
    assert verdict.why[0] == "no deployment in use is healthy"


def test_failed_deployments_are_named_first_and_count_as_unhealthy() -> None:
    verdict = sum_up({"a": "unhealthy", "b": "failed"}, ["a", "b"])
    assert verdict.health == "unhealthy"
    assert verdict.why[1:] == ("1 of 2 deployments is failed: b", "1 of 2 deployments is unhealthy: a")


def test_whole_is_unhealthy_when_a_model_has_no_deployment_left_though_others_are_well() -> None:
    verdict = sum_up({"a": "unhealthy", "b": "healthy"}, ["a", "b"], ["gpt-4o"])
    assert verdict.health == "unhealthy"
    assert verdict.why == ("no deployment is left for gpt-4o", "1 of 2 deployments is unhealthy: a")


def test_unused_unhealthy_deployment_does_not_make_the_whole_unhealthy() -> None:
    assert sum_up({"a": "unhealthy", "b": "healthy"}, []).health == "degraded"
    assert sum_up({"a": "unhealthy"}, ["gone"]).health == "degraded"


def test_long_list_of_names_is_cut() -> None:
    (why,) = sum_up({f"d{number}": "degraded" for number in range(8)}, []).why
    assert why == "8 of 8 deployments are degraded: d0, d1, d2, d3, d4 and 3 more"


# calls that the gateway itself refuses


@pytest.mark.parametrize(
    ("calls", "refused", "health"),
    [
        (9, 9, "healthy"), (10, 4, "healthy"), (10, 5, "degraded"), (10, 8, "degraded"), (10, 9, "unhealthy"),
        (1000, 499, "healthy"), (1000, 500, "degraded"), (1000, 899, "degraded"), (1000, 900, "unhealthy"),
        (0, 0, "healthy"),
    ],
)  # fmt: skip
def test_half_of_the_calls_refused_is_degraded_and_nearly_all_unhealthy(
    calls: int, refused: int, health: HealthState
) -> None:
    verdict = evaluate_refusals(calls, {"hold": refused} if refused else {})
    assert (verdict.health, bool(verdict.why)) == (health, health != "healthy")


def test_whole_is_no_healthier_than_the_calls_of_its_models() -> None:
    well, poor, ill = (
        HealthVerdict("healthy"),
        HealthVerdict("degraded", ("most",)),
        HealthVerdict("unhealthy", ("all",)),
    )
    assert with_refusals(well, well, {}) == well
    assert with_refusals(well, well, {"gpt": poor}) == HealthVerdict("degraded", ("gpt: most",))
    assert with_refusals(well, well, {"gpt": ill}) == HealthVerdict("degraded", ("gpt: all",))
    assert with_refusals(well, ill, {"gpt": ill}) == HealthVerdict("unhealthy", ("gpt: all",))
    assert with_refusals(ill, well, {"gpt": poor}) == HealthVerdict("unhealthy", ("all", "gpt: most"))


def test_only_some_of_many_models_are_named() -> None:
    found = with_refusals(
        HealthVerdict("healthy"),
        HealthVerdict("healthy"),
        {f"m{n}": HealthVerdict("degraded", ("x",)) for n in range(7)},
    )
    assert found.why == ("m0: x", "m1: x", "the same for 5 more models")
