"""Cooldowns as calls meet them, and what causes none: credentials, deployments and hosts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.cooldown import CREDENTIAL_S, Cooldowns
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.routing.route_table import Target
from tests.fakes.script import OK, SERVER_ERROR, Hang, Outcome, Slow, new_target
from tests.unit.proxy.attempts.plays import Play, Stage, evidence, limited, open_breaker, open_this, play, skipped

SPENT = Failure(
    FailureKind.QUOTA_EXHAUSTED,
    "answered 429 (code insufficient_quota)",
    answer=UpstreamErrorResponse(429, "", (), b"spent"),
)
WRONG_KEY = Failure(FailureKind.AUTH, "answered 401 (status 401)")
REFUSED = Failure(FailureKind.NETWORK, "connecting failed: refused", is_before_sending=True)
RESET = Failure(FailureKind.NETWORK, "the connection broke: reset")
ONCE = RetrySettings(jitter=0.0, adaptive=False, max_attempts=1)


def after(this: Play, seconds: float) -> Play:
    """Advances the clock before the call is received."""
    this.script.clock.advance(seconds)
    return this


async def fail(cooldowns: Cooldowns, target: Target, *outcomes: Outcome, **facts: Any) -> None:
    """Plays one call to one target, which fails with these outcomes."""
    this = play(*outcomes, targets=(target,), cooldowns=cooldowns, **facts)
    await this.gives_up()
    assert len(this.call.attempts) == len(outcomes)


async def fail_at(after_s: float, cooldowns: Cooldowns, target: Target, outcome: Outcome) -> None:
    """Plays a call that fails this long after the beginning."""
    this = after(play(outcome, targets=(target,), cooldowns=cooldowns), after_s)
    await this.gives_up()
    assert len(this.call.attempts) == 1


# credentials


async def test_spent_credential_takes_all_its_deployments_out_without_an_attempt() -> None:
    cooldowns = Cooldowns()
    shared = [new_target(f"a/{model}", api_key="k") for model in ("x", "y", "z")]
    await fail(cooldowns, shared[0], SPENT)
    await fail(cooldowns, shared[1], SPENT)
    third = play(OK, targets=(shared[2], new_target("b/z", api_key="other")), cooldowns=cooldowns)
    await third.serves()
    assert third.script.transcript == ["asked b/z"]
    assert skipped(third) == ["a/z"]


async def test_call_without_an_available_deployment_gets_the_provider_error_and_remaining_wait() -> None:
    cooldowns = Cooldowns()
    targets = (new_target("a/x", api_key="k"), new_target("a/y", api_key="k"))
    for target in targets:
        await fail(cooldowns, target, SPENT)
    this = after(play(targets=targets, cooldowns=cooldowns), 2.5)
    result = await this.gives_up()
    assert result.failure == replace(SPENT, retry_after_s=CREDENTIAL_S - 2.5)
    assert (result.refusal, result.why) == (None, "in cooldown")
    assert (this.call.attempts, skipped(this)) == ([], ["a/x", "a/y"])


async def test_credential_is_used_again_after_its_cooldown() -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    for _ in range(2):
        await fail(cooldowns, target, SPENT)
    for after_s in (CREDENTIAL_S, CREDENTIAL_S + 1):
        await after(play(OK, targets=(target,), cooldowns=cooldowns), after_s).serves()
    again = after(play(SPENT, targets=(target,), cooldowns=cooldowns), CREDENTIAL_S + 2)
    assert (await again.gives_up()).failure is SPENT
    await after(play(OK, targets=(target,), cooldowns=cooldowns), CREDENTIAL_S + 3).serves()


async def test_success_between_two_refusals_leaves_a_credential_in_use() -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    await fail(cooldowns, target, SPENT)
    await play(OK, targets=(target,), cooldowns=cooldowns).serves()
    await fail(cooldowns, target, SPENT)
    await play(OK, targets=(target,), cooldowns=cooldowns).serves()


async def test_callers_own_keys_have_cooldowns_each_for_itself() -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x")
    for _ in range(2):
        await fail(cooldowns, target, WRONG_KEY, key_digest="mallory")
    assert (await play(targets=(target,), cooldowns=cooldowns, key_digest="mallory").gives_up()).why == "in cooldown"
    await play(OK, targets=(target,), cooldowns=cooldowns, key_digest="alice").serves()


async def test_upstreams_own_key_is_the_same_for_all_callers() -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    await fail(cooldowns, target, SPENT, key_digest="alice")
    await fail(cooldowns, target, SPENT, key_digest="bob")
    assert (await play(targets=(target,), cooldowns=cooldowns, key_digest="carol").gives_up()).why == "in cooldown"


async def test_account_that_a_caller_chooses_has_a_cooldown_alone() -> None:
    """A nonexistent organization is answered with 401, which proves nothing about the key that others share."""
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    for _ in range(2):
        await fail(cooldowns, target, WRONG_KEY, account_digest="nowhere")
    assert (
        await play(targets=(target,), cooldowns=cooldowns, account_digest="nowhere").gives_up()
    ).why == "in cooldown"
    await play(OK, targets=(target,), cooldowns=cooldowns).serves()


async def test_key_that_replaces_a_spent_one_in_a_reload_is_used_at_once() -> None:
    cooldowns = Cooldowns()
    for _ in range(2):
        await fail(cooldowns, new_target("a/x", api_key="old"), SPENT)
    await play(OK, targets=(new_target("a/x", api_key="new"),), cooldowns=cooldowns).serves()


async def test_missing_permission_burns_an_attempt_of_its_own_call_only() -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    for _ in range(5):
        await fail(cooldowns, target, Failure(FailureKind.PERMISSION, "answered 403"))
    await play(OK, targets=(target,), cooldowns=cooldowns).serves()


async def test_calls_that_name_no_model_begin_no_cooldown_and_are_never_stopped() -> None:
    """A model key is refused where an administrator's key is required, and lists files even without balance."""
    cooldowns = Cooldowns()
    files, model = new_target("a", api_key="k"), new_target("a/x", api_key="k")
    for _ in range(5):
        await fail(cooldowns, files, WRONG_KEY)
        await fail(cooldowns, files, replace(limited(3600.0), kind=FailureKind.QUOTA_EXHAUSTED))
    await play(OK, targets=(model,), cooldowns=cooldowns).serves()
    for _ in range(2):
        await fail(cooldowns, model, SPENT)
    await play(OK, targets=(files,), cooldowns=cooldowns).serves()
    assert (await play(targets=(model,), cooldowns=cooldowns).gives_up()).why == "in cooldown"


# deployments with a Retry-After


async def test_deployment_that_requested_a_minute_gets_no_call_for_that_long() -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    await fail(cooldowns, target, limited(60.0))
    stopped = after(play(targets=(target,), cooldowns=cooldowns), 59.0)
    assert (await stopped.gives_up()).failure == limited(1.0)
    await after(play(OK, targets=(target,), cooldowns=cooldowns), 60.0).serves()


async def test_other_deployments_of_the_same_credential_are_not_left_alone_with_it() -> None:
    cooldowns = Cooldowns()
    await fail(cooldowns, new_target("a/x", api_key="k"), limited(60.0))
    await play(OK, targets=(new_target("a/y", api_key="k"),), cooldowns=cooldowns).serves()


async def test_caller_with_a_key_of_its_own_is_limited_alone() -> None:
    """Otherwise a caller without quota at the provider would block the model for all callers."""
    cooldowns = Cooldowns()
    target = new_target("a/x")
    await fail(cooldowns, target, limited(3600.0), key_digest="mallory")
    await play(OK, targets=(target,), cooldowns=cooldowns, key_digest="alice").serves()
    assert (await play(targets=(target,), cooldowns=cooldowns, key_digest="mallory").gives_up()).why == "in cooldown"


async def test_quota_that_names_a_time_stops_its_model_up_to_the_cap_and_no_other() -> None:
    cooldowns = Cooldowns()
    day = Failure(FailureKind.QUOTA_EXHAUSTED, "per day and model", 39_043.0)
    targets = [new_target(f"a/{model}", api_key="k") for model in ("x", "y")]
    await fail(cooldowns, targets[0], day)
    stopped = after(play(targets=(targets[0],), cooldowns=cooldowns), 59.0)
    assert (await stopped.gives_up()).failure == replace(day, retry_after_s=1.0)
    await play(OK, targets=(targets[1],), cooldowns=cooldowns).serves()
    await after(play(OK, targets=(targets[0],), cooldowns=cooldowns), 60.0).serves()


async def test_spent_quota_of_one_model_stops_no_other_model_of_the_credential() -> None:
    cooldowns = Cooldowns()
    spent, other = (new_target(f"a/{model}", api_key="k") for model in ("x", "y"))
    for _ in range(2):
        await fail(cooldowns, spent, SPENT)
    for _ in range(20):
        await play(OK, targets=(other,), cooldowns=cooldowns).serves()
    assert (await play(targets=(spent,), cooldowns=cooldowns).gives_up()).why == "in cooldown"


async def test_after_a_cooldown_one_call_goes_first_and_the_others_follow_it() -> None:
    stage = Stage(new_target("a/x", api_key="k"), a=[limited(86_400.0), Slow(1.0, OK), OK, OK])
    refused = await stage.start()
    assert stage.gave_up(refused).why == "Retry-After longer than retry.max_delay"
    await stage.pass_s(60.0)
    first, second = await stage.start(), await stage.start()
    assert stage.gave_up(second).why == "in cooldown"
    await stage.pass_s(1.0)
    assert stage.served(first).attempt.target is stage.targets[0]
    third, fourth = await stage.start(), await stage.start()
    assert all(stage.served(call).attempt.ended_at == stage.clock.now() for call in (third, fourth))


async def test_call_that_is_not_refused_soon_after_a_cooldown_readmits_the_others() -> None:
    """An answer may take minutes; a refusal does not."""
    stage = Stage(new_target("a/x", api_key="k"), a=[limited(86_400.0), Slow(100.0, OK), OK, OK])
    await stage.start()
    await stage.pass_s(60.0)
    await stage.start()
    await stage.pass_s(2.0)
    later_calls = [await stage.start() for _ in range(2)]
    assert all(stage.served(call).attempt.ended_at == stage.clock.now() for call in later_calls)


async def test_hint_repeated_after_a_cooldown_is_obeyed_again() -> None:
    cooldowns, target = Cooldowns(), new_target("a/x", api_key="k")
    for after_s in (0.0, 60.0, 120.0):
        await fail_at(after_s, cooldowns, target, limited(86_400.0))
        stopped = after(play(targets=(target,), cooldowns=cooldowns), after_s + 59.9)
        assert (await stopped.gives_up()).why == "in cooldown"


@pytest.mark.parametrize("kind", [FailureKind.INVALID_REQUEST, FailureKind.CONTENT_POLICY, FailureKind.NOT_FOUND])
async def test_retry_after_of_a_bad_request_starts_no_cooldown(kind: FailureKind) -> None:
    cooldowns = Cooldowns()
    target = new_target("a/x", api_key="k")
    await fail(cooldowns, target, Failure(kind, "answered 400", 3600.0))
    await play(OK, targets=(target,), cooldowns=cooldowns).serves()


async def test_deployment_left_for_its_fallback_is_skipped_until_its_retry_after() -> None:
    cooldowns = Cooldowns()
    targets = (new_target("a/x", api_key="k"), new_target("b/y", api_key="k"))
    first = play(limited(5.0), OK, targets=targets, cooldowns=cooldowns)
    await first.serves()
    second = after(play(OK, targets=targets, cooldowns=cooldowns), 4.9)
    await second.serves()
    assert second.script.transcript == ["asked b/y"]
    third = after(play(OK, targets=targets, cooldowns=cooldowns), 5.0)
    await third.serves()
    assert third.script.transcript == ["asked a/x"]


async def test_short_cooldown_of_the_only_deployment_is_waited_out() -> None:
    """Without the cooldown the call would have received Retry-After: 5 and waited."""
    cooldowns = Cooldowns()
    shared = new_target("a/x", api_key="k")
    await play(limited(5.0), OK, targets=(shared, new_target("b/y", api_key="k")), cooldowns=cooldowns).serves()
    alone = play(limited(5.0), OK, targets=(shared,), cooldowns=cooldowns)
    await alone.serves()
    assert alone.script.transcript == ["asked a/x", "slept 5", "asked a/x"]


async def test_wait_that_is_slept_out_starts_no_cooldown() -> None:
    cooldowns = Cooldowns()
    await play(limited(5.0), OK, targets=(new_target("a/x", api_key="k"),), cooldowns=cooldowns).serves()
    assert cooldowns.snapshot(1000.0) == {}


# no deployment available


async def test_of_cooldown_and_open_breaker_the_earlier_end_is_reported() -> None:
    cooldowns = Cooldowns()
    resting = new_target("a/x", api_key="k")
    failing = new_target("b/y", breaker=BreakerSettings(early_probes=False, open_for=7.0))
    await fail(cooldowns, resting, limited(60.0))
    open_breaker(failing)
    result = await play(targets=(resting, failing), cooldowns=cooldowns).gives_up()
    assert result.refusal is not None
    assert (result.refusal.by, result.refusal.retry_after_s) == ("breaker", 7.0)
    failed_later = new_target("b/y", breaker=BreakerSettings(early_probes=False, open_for=7.0))
    open_breaker(failed_later, now=1058.0)
    later_on = after(play(targets=(resting, failed_later), cooldowns=cooldowns), 58.0)
    assert (await later_on.gives_up()).failure == limited(2.0)


async def test_wait_for_a_deployment_in_cooldown_with_an_open_breaker_is_the_longer() -> None:
    cooldowns = Cooldowns()
    target = new_target(
        "a/x", api_key="k", breaker=BreakerSettings(early_probes=False, open_for=100.0, max_open_for=100.0)
    )
    await fail(cooldowns, target, limited(60.0))
    open_breaker(target)
    result = await play(targets=(target,), cooldowns=cooldowns).gives_up()
    assert result.refusal is not None
    assert result.refusal.retry_after_s == 100.0


# hosts


def on_one_host(*labels: str, host: BreakerSettings | None = None) -> tuple[Target, ...]:
    shared = Breaker(host or BreakerSettings(early_probes=False, consecutive_failures=2, open_for=30.0))
    return tuple(new_target(label, host=shared, retry=ONCE) for label in labels)


def host_of(target: Target) -> Breaker:
    return target.deployment.host


async def test_host_that_refuses_connections_takes_its_other_deployments_out() -> None:
    x, y, z = on_one_host("a/x", "a/y", "a/z")
    await fail(Cooldowns(), x, REFUSED)
    await fail(Cooldowns(), y, REFUSED)
    this = play(OK, targets=(z, new_target("b/z")))
    await this.serves()
    assert this.script.transcript == ["asked b/z"]
    assert skipped(this) == ["a/z"]
    assert evidence(z) == (0, 0)


@pytest.mark.parametrize(
    "failure",
    [RESET, SERVER_ERROR, Failure(FailureKind.TIMEOUT, "silent", limit="attempt"), limited(1.0), WRONG_KEY],
    ids=["reset", "500", "silence", "429", "401"],
)
async def test_host_is_not_blamed_for_errors_of_one_of_its_models(failure: Failure) -> None:
    x, y = on_one_host("a/x", "a/y")
    for _ in range(4):
        await fail(Cooldowns(), x, failure)
    assert host_of(y).snapshot(1000.0).failures == 0
    await play(OK, targets=(y,)).serves()


async def test_failure_to_connect_counts_against_the_deployment_as_well() -> None:
    (x,) = on_one_host("a/x")
    await fail(Cooldowns(), x, REFUSED)
    assert evidence(x) == (1, 1)
    assert host_of(x).snapshot(1000.0).failures == 1


async def test_connection_that_was_accepted_ends_a_row_of_refused_ones() -> None:
    x, y = on_one_host("a/x", "a/y")
    for failure in (REFUSED, RESET, REFUSED, SERVER_ERROR):
        await fail(Cooldowns(), x, failure)
    assert host_of(y).snapshot(1000.0).state == "closed"


async def test_host_that_is_down_is_refused_with_its_own_wait() -> None:
    x, y = on_one_host("a/x", "a/y", host=BreakerSettings(early_probes=False, consecutive_failures=1, open_for=9.0))
    await fail(Cooldowns(), x, REFUSED)
    result = await after(play(targets=(y,)), 2.0).gives_up()
    assert result.refusal is not None
    assert (result.refusal.by, result.refusal.retry_after_s) == ("breaker", 7.0)


async def test_half_open_host_recovers_by_one_probe_and_readmits_all_its_deployments() -> None:
    x, y = on_one_host("a/x", "a/y")
    open_this(host_of(x))
    await after(play(OK, targets=(x,)), 30.0).serves()
    assert host_of(x).snapshot(1030.0).state == "closed"
    await after(play(OK, targets=(y,)), 30.0).serves()


async def test_half_open_host_is_well_when_its_probe_is_answered_with_an_error() -> None:
    (x,) = on_one_host("a/x")
    open_this(host_of(x))
    await after(play(SERVER_ERROR, targets=(x,)), 30.0).gives_up()
    assert host_of(x).snapshot(1030.0).state == "closed"


async def test_half_open_host_that_still_refuses_is_left_alone_again() -> None:
    (x,) = on_one_host("a/x")
    open_this(host_of(x))
    await after(play(REFUSED, targets=(x,)), 30.0).gives_up()
    assert 27.0 <= host_of(x).retry_after_s(1030.0) <= 30.0


def assert_probe_is_free(target: Target, now: float) -> None:
    """Checks that the host is still half-open and its probe available."""
    seen = host_of(target).snapshot(now)
    assert (seen.state, seen.leases) == ("half_open", 0)
    assert host_of(target).try_acquire(now) is not None


async def test_cancelled_call_returns_the_probe_of_the_host() -> None:
    (x,) = on_one_host("a/x")
    open_this(host_of(x))
    task = asyncio.ensure_future(after(play(Hang(), targets=(x,)), 30.0).run())
    done, _ = await asyncio.wait([task], timeout=0.01)
    assert not done
    assert host_of(x).snapshot(1030.0).leases == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_probe_is_free(x, 1030.0)


async def test_bug_returns_the_probe_of_the_host() -> None:
    (x,) = on_one_host("a/x")
    open_this(host_of(x))
    with pytest.raises(RuntimeError, match="a bug"):
        await after(play(RuntimeError("a bug"), targets=(x,)), 30.0).run()
    assert_probe_is_free(x, 1030.0)


async def test_lack_of_local_resources_proves_nothing_about_the_host() -> None:
    (x,) = on_one_host("a/x")
    open_this(host_of(x))
    ours = Failure(FailureKind.INTERNAL, "out of sockets", is_before_sending=True)
    await after(play(ours, targets=(x,)), 30.0).gives_up()
    assert_probe_is_free(x, 1030.0)


async def test_deployment_whose_breaker_refuses_returns_the_probe_of_the_host() -> None:
    x, y = on_one_host("a/x", "a/y")
    open_this(host_of(x))
    open_breaker(x, now=1029.0)
    await after(play(OK, targets=(x, y)), 30.0).serves()
    assert host_of(y).snapshot(1030.0).state == "closed"
    open_this(host_of(x), now=1030.0)
    open_breaker(y, now=1059.0)
    await after(play(targets=(y,)), 60.0).gives_up()
    assert_probe_is_free(y, 1060.0)


# the client's deadline, retries by the client, and calls that only one provider can serve


async def test_call_with_a_short_client_deadline_opens_no_breaker() -> None:
    x, y = on_one_host("a/x", "a/y")
    for is_before_sending in (True, False):
        for _ in range(20):
            late = Failure(FailureKind.TIMEOUT, "late", limit="total", is_before_sending=is_before_sending)
            this = play(Slow(0.01, late), targets=(x,), client_deadline=1000.01, deadline_at=1600.0)
            assert (await this.gives_up()).why == "deadline"
    assert evidence(x) == (0, 0)
    assert host_of(y).snapshot(1000.0).failures == 0
    await play(OK, targets=(x,)).serves()


async def test_deployment_that_uses_up_the_time_of_the_whole_call_is_still_blamed() -> None:
    target = new_target("a/x", retry=ONCE)
    late = Failure(FailureKind.TIMEOUT, "late", limit="total")
    await play(Slow(600.0, late), targets=(target,), deadline_at=1600.0).gives_up()
    await play(Slow(600.0, late), targets=(target,), deadline_at=1600.0, client_deadline=1700.0).gives_up()
    assert evidence(target) == (2, 2)


async def test_limit_of_an_attempt_that_ends_before_the_client_deadline_is_evidence() -> None:
    target = new_target("a/x", retry=ONCE)
    late = Failure(FailureKind.TIMEOUT, "late", limit="attempt")
    await play(Slow(5.0, late), targets=(target,), client_deadline=1010.0, deadline_at=1600.0).gives_up()
    assert evidence(target) == (1, 1)


async def test_wait_past_the_client_deadline_is_not_begun() -> None:
    this = play(SERVER_ERROR, client_deadline=1000.2, deadline_at=1600.0)
    assert (await this.gives_up()).why == "deadline"
    assert this.script.transcript == ["asked a/x"]


async def test_clients_own_retry_brings_the_budget_nothing() -> None:
    target = new_target("a/x")
    for client_retries in (0, 1, 2):
        await play(OK, targets=(target,), client_retries=client_retries).serves()
    assert target.deployment.budget.snapshot(1000.0).calls == 1


@pytest.mark.parametrize("failure", [SERVER_ERROR, REFUSED, limited(7.0), SPENT])
async def test_call_that_is_bound_to_a_provider_never_falls_back(failure: Failure) -> None:
    targets = (new_target("a/x", retry=ONCE), new_target("b/y"))
    this = play(failure, targets=targets, is_sticky=True)
    await this.gives_up()
    assert this.script.transcript == ["asked a/x"]


async def test_sticky_call_waits_for_its_provider_instead_of_trying_the_next() -> None:
    this = play(limited(7.0), OK, targets=(new_target("a/x"), new_target("b/y")), is_sticky=True)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "slept 7", "asked a/x"]


async def test_sticky_call_is_refused_when_its_provider_is_unavailable() -> None:
    targets = (new_target("a/x"), new_target("b/y"))
    open_breaker(targets[0])
    result = await play(targets=targets, is_sticky=True).gives_up()
    assert result.refusal is not None
    assert result.refusal.message.startswith("a/x: ")
    cooldowns = Cooldowns()
    stopped = (new_target("a/x", api_key="k"), new_target("b/y"))
    await fail(cooldowns, stopped[0], limited(60.0))
    assert (await play(targets=stopped, cooldowns=cooldowns, is_sticky=True).gives_up()).why == "in cooldown"


# fallback to another model


async def test_context_too_long_skips_the_other_deployments_of_its_model() -> None:
    too_long = Failure(FailureKind.CONTEXT_LENGTH, "answered 400")
    targets = (new_target("a/x"), new_target("b/x"), new_target("b/large", alias="large"))
    this = play(too_long, OK, targets=targets)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/large"]


async def test_context_too_long_for_the_last_model_too_is_that_ones_answer() -> None:
    too_long = Failure(FailureKind.CONTEXT_LENGTH, "answered 400")
    targets = (new_target("a/x"), new_target("b/large", alias="large"), new_target("c/large", alias="large"))
    this = play(too_long, too_long, targets=targets)
    assert (await this.gives_up()).why == "final error"
    assert this.script.transcript == ["asked a/x", "asked b/large"]


async def test_non_repeatable_call_is_given_up_after_a_possible_execution() -> None:
    targets = (new_target("a/x"), new_target("b/y"))
    this = play(RESET, targets=targets, is_repeatable=False)
    assert (await this.gives_up()).why == "not idempotent: it may have been executed"
    again = play(REFUSED, limited(0.1), OK, targets=targets, is_repeatable=False)
    await again.serves()
    assert again.script.transcript == ["asked a/x", "asked a/x", "asked b/y"]
