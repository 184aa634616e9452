"""Where each of the fifty scenarios A01 to A50 is tested or measured, or why it is not.

A test checks that every function named here exists. The figures are in `benchmarks/results/storm.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

IDS = tuple(f"A{number:02}" for number in range(1, 51))

_BREAKER, _WALK = "tests/unit/resilience/circuit_breaker/test_breaker.py::", "tests/property/test_breaker.py::"
_EVIDENCE = "tests/unit/resilience/circuit_breaker/test_breaker_failure_statistics.py::"
_BUDGET, _FRONTIER = (
    "tests/unit/resilience/retry/test_limits_budget.py::",
    "tests/unit/resilience/retry/test_budget_frontier.py::",
)
_BACKOFF, _WAITS = (
    "tests/unit/resilience/retry/test_backoff.py::",
    "tests/unit/resilience/classification/test_retry_after.py::",
)
_LOOP, _RECOVERY = "tests/unit/proxy/attempts/test_attempt_loop.py::", "tests/chaos/test_recovery.py::"
_DEADLINE, _LIMITS = "tests/unit/resilience/routing/test_candidates_deadline.py::", "tests/integration/test_limits.py::"
_HEDGE, _SPREAD = "tests/unit/resilience/retry/test_hedging.py::", "tests/unit/resilience/retry/test_spread.py::"
_LIMITER, _FAULTS = (
    "tests/unit/resilience/capacity/test_gate_concurrency_limit.py::",
    "tests/chaos/test_upstream_faults.py::",
)
_GATE = "tests/unit/resilience/capacity/test_gate.py::"
_STORM, _BENCH = "tests/unit/resilience/retry/test_storm.py::", "benchmarks/storm/"


@dataclass(frozen=True, slots=True)
class Coverage:
    """`where`: `file::function`, from the root; several if the scenario has several parts."""

    scenario: str
    title: str
    kind: Literal["test", "benchmark", "not"]
    where: tuple[str, ...] = ()
    note: str = ""


COVERAGE: tuple[Coverage, ...] = (
    Coverage("A01", "count window of 100 opens with the 100th failure", "test",
             (_BREAKER + "test_count_window_opens_at_its_minimum_and_not_before",)),
    Coverage("A02", "exactly the limit opens, just below does not", "test",
             (_BREAKER + "test_full_count_window_decides_by_the_share_alone",
              _BREAKER + "test_rate_below_the_limit_stays_closed")),
    Coverage("A03", "minimum larger than the count window", "test",
             (_BREAKER + "test_minimum_is_no_larger_than_the_count_window",)),
    Coverage("A04", "slow calls open it though none failed", "test",
             (_BREAKER + "test_slow_calls_open_it_though_none_failed",
              _BREAKER + "test_call_both_slow_and_failed_counts_in_both_rates")),
    Coverage("A05", "open refuses all, then lets exactly the probes through", "test",
             (_BREAKER + "test_open_refuses_until_its_time_then_admits_exactly_the_probes",
              _BENCH + "breakers.py::refusing")),
    Coverage("A06", "half-open judges a batch of probes by their rate", "test",
             (_BREAKER + "test_one_failed_probe_opens_it_again_and_forgets_the_successes",
              _BREAKER + "test_enough_successful_probes_close_it_with_an_empty_window"),
             "differs: success_threshold successes in a row close it, one failure opens it"),
    Coverage("A07", "probe that never ends", "test",
             (_BREAKER + "test_cancelled_probe_returns_its_permit",
              _BREAKER + "test_lost_probe_frees_its_place_when_its_lease_ends",
              "tests/integration/test_client_disconnects.py::test_cancelled_probe_returns_its_permit")),
    Coverage("A08", "outcomes that are nobody's failure", "test",
             (_BREAKER + "test_outcomes_that_are_not_the_deployments_doing_count_for_nothing",
              _RECOVERY + "test_rate_limits_and_bad_requests_open_no_breaker")),
    Coverage("A09", "results of an earlier state", "test",
             (_BREAKER + "test_stragglers_change_nothing",
              _BREAKER + "test_straggler_from_before_the_outage_does_not_count_after_it")),
    Coverage("A10", "forced open, disabled, metrics only", "test",
             (_BREAKER + "test_forced_open_refuses_everything_for_ever",
              _BREAKER + "test_forced_states_that_pass_never_open")),
    Coverage("A11", "requests that pass while all fail", "benchmark",
             (_BENCH + "breakers.py::load_protection", _STORM + "test_dead_provider_is_spared_and_still_probed")),
    Coverage("A12", "opening by chance", "benchmark",
             (_BENCH + "breakers.py::false_opens", _BREAKER + "test_brownout_does_not_open_by_chance",
              _STORM + "test_naive_window_opens_by_chance_and_the_breaker_does_not")),
    Coverage("A13", "nothing but 429", "test",
             (_RECOVERY + "test_rate_limits_and_bad_requests_open_no_breaker", _BENCH + "breakers.py::rate_limited"),
             "differs: a 429 in a probe tells nothing either"),
    Coverage("A14", "five failures in a row", "test",
             (_BREAKER + "test_quiet_deployment_opens_at_exactly_the_threshold",
              _EVIDENCE + "test_steady_failures_require_longer_runs"),
             "of a deployment that also succeeds, five in a row must be more than chance"),
    Coverage("A15", "every deployment of a chain is open", "test",
             (_LOOP + "test_all_breakers_open_is_a_refusal_with_the_soonest_return",
              _RECOVERY + "test_breaker_of_a_dead_provider_refuses_in_milliseconds"),
             "no panic mode: a provider that is down is not asked by everybody; no dead letters yet"),
    Coverage("A16", "wall clock jumps while open", "test",
             (_BREAKER + "test_open_duration_is_measured_on_the_given_clock",),
             "monotonic time alone; lint bans other clocks"),
    Coverage("A17", "retries of several layers multiply", "benchmark",
             (_BENCH + "breakers.py::stacked", _FRONTIER + "test_outage_without_budget_quadruples_the_load")),
    Coverage("A18", "token budget of 20 %, all fail", "test",
             (_BUDGET + "test_total_outage_costs_a_fifth_more_and_the_reserve",
              _FRONTIER + "test_fixed_budget_holds_an_outage_to_a_fifth_more_and_the_reserve")),
    Coverage("A19", "budget of concurrent retries", "not", (),
             "tokens instead: the same bound of 1.2 without a count of calls in flight; the floor grants a quiet "
             "caller its retries"),
    Coverage("A20", "30 % failures under several budgets", "test",
             (_FRONTIER + "test_three_calls_of_ten_fail", _BENCH + "budgets.py::rows")),
    Coverage("A21", "a budget is invisible at few failures", "test",
             (_FRONTIER + "test_budget_is_invisible_at_few_failures", _BENCH + "budgets.py::rows")),
    Coverage("A22", "quota of the AWS SDKs", "test", (_FRONTIER + "test_aws_quota_grants_the_retries_of_500_tokens",),
             "for comparison"),
    Coverage("A23", "throttle of gRPC", "test", (_FRONTIER + "test_grpc_throttle_ends_retries_after_the_third",),
             "for comparison"),
    Coverage("A24", "backoff of gRPC", "benchmark", (_BENCH + "jitter.py::formula_rows",
             _BACKOFF + "test_share_spreads_below_the_longest_wait_instead_of_piling_up_on_it"),
             "differs: a longer base and a wider spread"),
    Coverage("A25", "backoff of Envoy", "benchmark", (_BENCH + "jitter.py::formula_rows",
             _BACKOFF + "test_full_jitter_spreads_from_nothing"), "differs: seconds instead of tenths"),
    Coverage("A26", "1,000 clients fail at once", "benchmark",
             (_BENCH + "jitter.py::herds", _STORM + "test_herd_is_spread_as_expected")),
    Coverage("A27", "contention for one row", "benchmark",
             (_BENCH + "jitter.py::contentions", _STORM + "test_full_jitter_halves_the_calls_of_contending_writers")),
    Coverage("A28", "Retry-After in every form", "test",
             (_WAITS + "test_header_with_retry_after", _WAITS + "test_nonsense_is_no_hint",
              _BACKOFF + "test_retry_after_is_a_floor_with_a_spread_above"),
             "differs: spread by a tenth above; a date in the past and a negative number are no hint"),
    Coverage("A29", "Retry-After beyond the deadline", "test",
             (_LOOP + "test_deadline_that_would_pass_in_a_sleep_ends_the_call_before_it",
              _RECOVERY + "test_retry_after_above_max_delay_is_passed_on_at_once")),
    Coverage("A30", "SDK behind an exhausted gateway", "test",
             ("tests/e2e/test_exceptions.py::test_openai_sdk_does_not_retry_after_the_gateway_has_retried",
              "tests/e2e/test_exceptions.py::test_anthropic_sdk_does_not_retry_after_the_gateway_has_retried")),
    Coverage("A31", "stream that fails after its first byte", "test",
             ("tests/integration/test_commit.py::test_stream_that_breaks_ends_in_one_error_event",
              "tests/e2e/test_stream_failures.py::test_stream_that_breaks_raises_in_the_sdk",
              "tests/e2e/test_continuation.py::test_chat_stream_is_resumed")),
    Coverage("A32", "stale connection", "test",
             (_FAULTS + "test_stale_connection_is_replaced_at_once_and_counts_as_no_failure",)),
    Coverage("A33", "one deadline over a chain", "test",
             (_DEADLINE + "test_attempt_that_cannot_finish_is_not_started",
              _LIMITS + "test_total_limit_holds_over_attempts_and_their_waits")),
    Coverage("A34", "a timeout closes the connection", "test",
             (_LIMITS + "test_unary_call_without_a_head_ends_at_the_attempt_limit",
              "tests/chaos/test_leaks.py::test_ten_thousand_calls_leak_nothing")),
    Coverage("A35", "slow stream, then silence", "test",
             (_LIMITS + "test_stream_that_falls_silent_ends_at_the_idle_limit",
              _LIMITS + "test_attempt_limit_leaves_a_stream_alone")),
    Coverage("A36", "hedging two modes of latency", "benchmark",
             (_BENCH + "spread.py::run", _SPREAD + "test_slow_tail_is_cut_for_six_percent_of_extra_load")),
    Coverage("A37", "hedging a heavy tail", "benchmark",
             (_BENCH + "spread.py::run", _SPREAD + "test_heavy_tail_becomes_lighter")),
    Coverage("A38", "hedges while everything is slow", "benchmark",
             (_SPREAD + "test_storm_is_not_fed_by_hedges",
              _HEDGE + "test_storm_costs_the_share_and_the_reserve_and_no_more")),
    Coverage("A39", "ten times more than is taken", "benchmark", (_BENCH + "throttle.py::paced",
             _STORM + "test_pacer_sends_little_more_than_is_taken"),
             "differs: a learned rate and a breaker, no rejecting by chance"),
    Coverage("A40", "all fail, with no floor of probes", "benchmark", (_BENCH + "throttle.py::broken_off",),
             "differs: one probe after each opening"),
    Coverage("A41", "limit by the gradient of latency", "test",
             (_LIMITER + "test_latency_that_doubles_decreases_the_limit_by_a_tenth_a_round_trip_at_most",
              _LIMITER + "test_limit_recovers_when_latency_is_back")),
    Coverage("A42", "additive increase, multiplicative decrease", "test",
             (_LIMITER + "test_overloads_take_more_the_more_there_are",
              _LIMITER + "test_limit_does_not_grow_when_idle")),
    Coverage("A43", "Envoy's gradient controller", "not", (),
             "the limiter of A41 and A42 instead: Envoy's measures the best latency by closing down to three calls "
             "now and then, which answers that take a minute do not allow"),
    Coverage("A44", "one slow replica of ten", "benchmark",
             (_BENCH + "spread.py::run", _SPREAD + "test_odd_replica_is_avoided_by_latency")),
    Coverage("A45", "outage near capacity, naive retries", "benchmark",
             (_BENCH + "metastable.py::run", _STORM + "test_naive_retries_prevent_the_recovery_of_a_provider")),
    Coverage("A46", "the same with a breaker", "benchmark",
             (_BENCH + "metastable.py::run", _STORM + "test_our_policies_allow_a_recovery")),
    Coverage("A47", "the same with a budget alone", "benchmark", (_BENCH + "metastable.py::run",)),
    Coverage("A48", "the same with work that stops at the timeout", "benchmark",
             (_BENCH + "metastable.py::run", _STORM + "test_provider_that_sees_timeouts_comes_back_at_once")),
    Coverage("A49", "stale answers while one call revalidates", "not", (), "there is no cache of answers yet"),
    Coverage("A50", "ten times the load on a bounded queue", "test",
             (_GATE + "test_full_queue_takes_no_call_of_the_same_priority",
              _GATE + "test_wait_is_estimated_from_use_limit_and_queue"),
             "the line is bounded and refuses with an estimated wait; a minute of it with memory is not measured"),
)  # fmt: skip
