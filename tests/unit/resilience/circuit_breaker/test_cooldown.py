from __future__ import annotations

import pytest

from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.resilience.circuit_breaker.cooldown import (
    ACCEPTED_S,
    CREDENTIAL_S,
    PROBE_S,
    Cooldown,
    CooldownKey,
    Cooldowns,
    as_of,
    deployment_key,
    quota_key,
)

KEY: CooldownKey = ("credential", "openai", "https://api.openai.com/v1", "digest", "")
OTHER: CooldownKey = ("credential", "azure", "https://azure/openai/v1", "digest", "")
PLACE = deployment_key(KEY, "gpt-4")
QUOTA = quota_key(KEY, "gpt-4")
CAP_S = 60.0
BODY = b'{"error": {"code": "insufficient_quota"}}'
SPENT = Failure(FailureKind.QUOTA_EXHAUSTED, "answered 429 (code insufficient_quota)")
WRONG_KEY = Failure(FailureKind.AUTH, "answered 401 (status 401)")


def limited(asked_s: float | None, detail: str = "answered 429") -> Failure:
    return Failure(FailureKind.RATE_LIMIT, detail, asked_s)


def left_s(
    cooldowns: Cooldowns, now: float = 0.0, *, model: str = "gpt-4", credential: CooldownKey = KEY
) -> float | None:
    """Returns the seconds left of the longest cooldown of a credential for a model, or None."""
    stop = cooldowns.find(credential, model, now)
    return stop.until - now if stop is not None else None


def hint_left_s(cooldowns: Cooldowns, now: float = 0.0) -> float | None:
    stop = cooldowns.find_hint(PLACE, now)
    return stop.until - now if stop is not None else None


def refuse(cooldowns: Cooldowns, failure: Failure, *instants: float, model: str = "gpt-4") -> None:
    for now in instants:
        cooldowns.note_refusal(KEY, model, failure, now)


def serve(cooldowns: Cooldowns, now: float, *, model: str = "gpt-4", credential: CooldownKey = KEY) -> None:
    """Notes a call that was sent and answered at `now`."""
    cooldowns.note_success(credential, model, now, now)


# credentials


@pytest.mark.parametrize("failure", [SPENT, WRONG_KEY])
def test_credential_is_left_alone_after_two_refusals_in_a_row(failure: Failure) -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, failure, 0.0)
    assert left_s(cooldowns) is None
    refuse(cooldowns, failure, 1.0)
    assert cooldowns.find(KEY, "gpt-4", 1.0) == Cooldown(
        1.0 + CREDENTIAL_S, failure, since=1.0, callers=frozenset({""})
    )
    assert left_s(cooldowns, 1.0, credential=OTHER) is None


def test_cooldown_ends_at_its_instant_and_not_before() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0, 0.0)
    assert left_s(cooldowns, CREDENTIAL_S - 0.001) is not None
    assert left_s(cooldowns, CREDENTIAL_S) is None


def test_credential_that_is_still_refused_after_its_cooldown_is_left_alone_at_once() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0, 0.0, CREDENTIAL_S)
    assert left_s(cooldowns, CREDENTIAL_S) == CREDENTIAL_S


@pytest.mark.parametrize("failure", [SPENT, WRONG_KEY])
def test_success_in_between_begins_the_count_again(failure: Failure) -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, failure, 0.0)
    serve(cooldowns, 1.0)
    refuse(cooldowns, failure, 40.0)
    assert left_s(cooldowns, 40.0) is None
    refuse(cooldowns, failure, 41.0)
    assert left_s(cooldowns, 41.0) is not None


def test_success_of_another_credential_does_not_help() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0)
    serve(cooldowns, 1.0, credential=OTHER)
    refuse(cooldowns, SPENT, 2.0)
    assert left_s(cooldowns, 2.0) is not None


def test_quota_that_names_a_time_does_not_stop_the_credential_for_it() -> None:
    """The quota may be one model's for the day: another model of the same credential must be tried soon."""
    cooldowns = Cooldowns()
    refuse(cooldowns, Failure(FailureKind.QUOTA_EXHAUSTED, "per day", 39_043.0), 0.0, 0.0)
    assert left_s(cooldowns) == CREDENTIAL_S


def test_missing_permission_is_about_the_request_and_stops_no_credential() -> None:
    """A caller can provoke this failure: it must not block a credential that others share."""
    cooldowns = Cooldowns()
    refuse(cooldowns, Failure(FailureKind.PERMISSION, "answered 403"), *[0.0] * 10)
    assert cooldowns.snapshot(0.0) == {}


def test_key_that_was_accepted_a_moment_ago_is_not_taken_for_a_wrong_one() -> None:
    """A caller that can provoke two 401 in a row must not block a key that works for others."""
    cooldowns = Cooldowns()
    serve(cooldowns, 0.0)
    refuse(cooldowns, WRONG_KEY, *[ACCEPTED_S - 1] * 10)
    assert left_s(cooldowns, ACCEPTED_S - 1) is None
    refuse(cooldowns, WRONG_KEY, ACCEPTED_S, ACCEPTED_S)
    assert left_s(cooldowns, ACCEPTED_S) is not None


def test_balance_may_be_spent_a_moment_after_a_success() -> None:
    cooldowns = Cooldowns()
    serve(cooldowns, 0.0)
    refuse(cooldowns, SPENT, 0.0, 0.0)
    assert left_s(cooldowns) is not None


# quota of one model


def test_spent_quota_of_one_model_stops_no_other_model() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, *[0.0] * 20)
    assert left_s(cooldowns) == CREDENTIAL_S
    assert left_s(cooldowns, model="gpt-5") is None


def test_second_model_without_a_success_in_between_stops_the_whole_credential() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0)
    refuse(cooldowns, SPENT, 1.0, model="gpt-5")
    assert left_s(cooldowns, 1.0, model="o3") == CREDENTIAL_S


def test_second_model_after_a_success_stops_only_itself() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0, 0.0)
    serve(cooldowns, 1.0, model="o3")
    refuse(cooldowns, SPENT, 2.0, 2.0, model="gpt-5")
    assert left_s(cooldowns, 3.0) is not None
    assert left_s(cooldowns, 3.0, model="gpt-5") is not None
    assert left_s(cooldowns, 3.0, model="o3") is None


def test_refused_key_stops_all_models() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, WRONG_KEY, 0.0, 0.0)
    assert left_s(cooldowns, model="gpt-5") == CREDENTIAL_S
    assert left_s(cooldowns, PROBE_S, model="gpt-5") is not None


def test_model_that_has_not_reported_a_spent_quota_may_try_the_credential_now_and_then() -> None:
    """Two models without quota must not block a third one that has its own."""
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0, 0.0)
    refuse(cooldowns, SPENT, 0.0, model="gpt-5")
    assert left_s(cooldowns, PROBE_S - 0.1, model="o3") is not None
    assert left_s(cooldowns, PROBE_S, model="o3") is None
    cooldowns.note_sent((KEY,), PROBE_S)
    assert left_s(cooldowns, PROBE_S, model="o3") is not None
    assert left_s(cooldowns, PROBE_S, model="gpt-5") is not None
    serve(cooldowns, PROBE_S, model="o3")
    assert left_s(cooldowns, PROBE_S, model="o3") is None
    assert left_s(cooldowns, PROBE_S, model="gpt-4") is not None


def test_names_that_callers_make_up_do_not_fill_the_memory() -> None:
    cooldowns = Cooldowns()
    for number in range(10_000):
        refuse(cooldowns, SPENT, 0.0, model=f"gpt-{number}")
    spent = cooldowns._entries[KEY].spent
    assert spent is not None
    assert len(spent) <= 64


# deployments


def test_deployment_gets_no_calls_as_long_as_its_hint_lasts() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(50.0), CAP_S, 0.0)
    assert cooldowns.find_hint(PLACE, 49.9) == Cooldown(50.0, limited(50.0), callers=frozenset({""}))
    assert cooldowns.find_hint(PLACE, 50.0) is None


def test_deployment_that_sent_no_hint_is_not_left_alone() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(None), CAP_S, 0.0)
    assert cooldowns.find_hint(PLACE, 0.0) is None


def test_hint_is_obeyed_up_to_the_cap() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(86_400.0), CAP_S, 0.0)
    assert hint_left_s(cooldowns) == CAP_S


def test_longer_cooldown_outlasts_a_later_shorter_one() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(55.0, "long"), CAP_S, 0.0)
    cooldowns.note_wait(PLACE, limited(5.0, "short"), CAP_S, 1.0)
    stop = cooldowns.find_hint(PLACE, 1.0)
    assert stop is not None
    assert (stop.until, stop.failure.detail) == (55.0, "long")
    cooldowns.note_wait(PLACE, limited(58.0, "longer"), CAP_S, 1.0)
    assert hint_left_s(cooldowns, 1.0) == 58.0


def test_of_several_cooldowns_the_longest_is_found() -> None:
    cooldowns = Cooldowns()
    refuse(cooldowns, SPENT, 0.0, 0.0)
    refuse(cooldowns, WRONG_KEY, 2.0, 2.0)
    assert left_s(cooldowns, 2.0) == CREDENTIAL_S
    assert left_s(cooldowns, 2.0, model="gpt-5") == CREDENTIAL_S


# end of a cooldown


def resting(hint_s: float = 50.0) -> Cooldowns:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(hint_s), CAP_S, 0.0)
    return cooldowns


def test_one_call_is_sent_first_and_the_others_wait_for_its_outcome() -> None:
    cooldowns = resting()
    assert hint_left_s(cooldowns, 50.0) is None
    cooldowns.note_sent((PLACE,), 50.0)
    assert hint_left_s(cooldowns, 50.0) == PROBE_S
    cooldowns.note_success(KEY, "gpt-4", 50.0, 50.5)
    assert hint_left_s(cooldowns, 50.5) is None


def test_refused_first_call_begins_the_next_cooldown() -> None:
    cooldowns = resting()
    cooldowns.note_sent((PLACE,), 50.0)
    cooldowns.note_wait(PLACE, limited(20.0), CAP_S, 50.2)
    assert hint_left_s(cooldowns, 50.2) == pytest.approx(20.0)
    assert hint_left_s(cooldowns, 71.0) is None
    cooldowns.note_sent((PLACE,), 71.0)
    assert hint_left_s(cooldowns, 71.0) == PROBE_S


def test_first_call_that_never_comes_back_blocks_the_others_only_for_a_moment() -> None:
    cooldowns = resting()
    cooldowns.note_sent((PLACE,), 50.0)
    assert hint_left_s(cooldowns, 50.0 + PROBE_S) is None
    cooldowns.note_sent((PLACE,), 50.0 + PROBE_S)
    assert hint_left_s(cooldowns, 50.0 + PROBE_S) is None


def test_call_sent_despite_a_cooldown_is_not_the_first_at_its_end() -> None:
    cooldowns = resting()
    cooldowns.note_sent((PLACE,), 49.5)
    assert hint_left_s(cooldowns, 50.0) is None
    cooldowns.note_sent((PLACE,), 50.0)
    assert hint_left_s(cooldowns, 50.0) == PROBE_S


def test_success_of_a_call_that_was_sent_before_ends_no_cooldown() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(50.0), CAP_S, 5.0)
    cooldowns.note_success(KEY, "gpt-4", 4.9, 6.0)
    assert hint_left_s(cooldowns, 6.0) == 49.0
    cooldowns.note_success(KEY, "gpt-4", 5.1, 6.0)
    assert hint_left_s(cooldowns, 6.0) is None


def test_lifted_cooldowns_are_over_and_those_that_there_were_are_returned() -> None:
    cooldowns = resting()
    refuse(cooldowns, SPENT, 0.0, 0.0)
    assert cooldowns.lift([PLACE, QUOTA, OTHER], 1.0) == [PLACE, QUOTA]
    assert (hint_left_s(cooldowns), left_s(cooldowns)) == (None, None)
    assert cooldowns.lift([PLACE, QUOTA, OTHER], 1.0) == []


def test_ended_cooldown_admits_one_call_first() -> None:
    cooldowns = resting()
    cooldowns.expire([PLACE, OTHER], 10.0)
    assert hint_left_s(cooldowns, 10.0) is None
    cooldowns.note_sent((PLACE,), 10.0)
    assert hint_left_s(cooldowns, 10.0) == PROBE_S
    cooldowns.expire([PLACE], 11.0)
    assert hint_left_s(cooldowns, 11.0) == PROBE_S - 1.0


def test_hints_of_an_upstream_are_found_for_one_model_or_for_all() -> None:
    cooldowns = resting()
    other = deployment_key(OTHER, "gpt-4")
    cooldowns.note_wait(other, limited(50.0), CAP_S, 0.0)
    assert cooldowns.hints("openai", None) == cooldowns.hints("openai", "gpt-4") == [PLACE]
    assert cooldowns.hints("openai", "gpt-5") == []
    assert cooldowns.hints("azure", None) == [other]


# error responses during a cooldown


def test_reported_wait_is_the_remaining_one() -> None:
    told = as_of(Cooldown(60.0, limited(55.0)), 47.5)
    assert told == limited(12.5)


def test_error_is_shared_without_the_headers_of_one_call() -> None:
    headers = (
        ("Content-Type", "application/json"), ("content-encoding", "gzip"), ("Set-Cookie", "__cf_bm=1"),
        ("x-request-id", "req_1"), ("date", "today"), ("retry-after", "60"),
    )  # fmt: skip
    answer = UpstreamErrorResponse(429, "Too Many Requests", headers, BODY)
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, Failure(FailureKind.RATE_LIMIT, "limited", 60.0, answer=answer), CAP_S, 0.0)
    rest = cooldowns.find_hint(PLACE, 0.0)
    assert rest is not None
    assert rest.failure.answer == UpstreamErrorResponse(429, "Too Many Requests", headers[:2], BODY)


@pytest.mark.parametrize(("size", "is_kept"), [(16_384, True), (16_385, False)])
def test_long_error_is_not_stored(size: int, is_kept: bool) -> None:
    answer = UpstreamErrorResponse(429, "", (), b"x" * size)
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, Failure(FailureKind.RATE_LIMIT, "limited", 60.0, answer=answer), CAP_S, 0.0)
    rest = cooldowns.find_hint(PLACE, 0.0)
    assert rest is not None
    assert rest.failure.answer == (answer if is_kept else None)


# bounds


def fill(cooldowns: Cooldowns, count: int, now: float = 0.0) -> None:
    for number in range(count):
        cooldowns.note_wait(("credential", "openai", str(number)), limited(60.0), CAP_S, now)


def test_cooldowns_have_room_for_4096_and_forget_the_oldest_first() -> None:
    cooldowns = Cooldowns()
    fill(cooldowns, 5000)
    resting = cooldowns.snapshot(0.0)
    assert len(resting) == 4096
    assert ("credential", "openai", "903") not in resting
    assert ("credential", "openai", "904") in resting


def test_flood_of_other_keys_does_not_push_out_one_that_stops_calls() -> None:
    cooldowns = resting()
    for number in range(20_000):
        cooldowns.note_refusal(("credential", "openai", str(number)), "gpt-4", WRONG_KEY, 0.0)
        if number % 1000 == 0:
            assert hint_left_s(cooldowns) is not None
            cooldowns.note_stopped((KEY, QUOTA, PLACE))


def test_snapshot_shows_current_restrictions() -> None:
    cooldowns = resting()
    refuse(cooldowns, SPENT, 0.0)
    serve(cooldowns, 0.0, credential=OTHER)
    assert cooldowns.snapshot(0.0) == {PLACE: Cooldown(50.0, limited(50.0), callers=frozenset({""}))}
    assert cooldowns.snapshot(50.0) == {}
    cooldowns.note_sent((PLACE,), 50.0)
    assert cooldowns.snapshot(50.0) == {PLACE: Cooldown(50.0 + PROBE_S, limited(50.0), callers=frozenset({""}))}


def test_cooldowns_are_certainly_empty_some_time_after_the_last_one() -> None:
    cooldowns = Cooldowns()
    assert cooldowns.quiet_from <= 0.0
    cooldowns.note_wait(PLACE, limited(50.0), CAP_S, 0.0)
    assert cooldowns.quiet_from > 50.0
    assert cooldowns.quiet_from <= 80.0


def test_first_call_long_after_the_end_of_a_cooldown_ends_it_for_the_others_too() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(0.25), CAP_S, 0.0)
    assert hint_left_s(cooldowns, 30.0) is None
    cooldowns.note_sent([PLACE], 30.0)
    assert hint_left_s(cooldowns, 30.0) is not None
    cooldowns.note_success(KEY, "gpt-4", 30.0, 31.0)
    assert hint_left_s(cooldowns, 31.0) is None


# key pools


def test_key_that_was_refused_where_another_one_was_not_is_left_alone_at_once() -> None:
    cooldowns = Cooldowns()
    serve(cooldowns, 0.0)  # two refusals in a row would not be enough after this
    cooldowns.note_refused_alone(KEY, "gpt-4", WRONG_KEY, 1.0)
    assert left_s(cooldowns, 1.0) == CREDENTIAL_S
    assert left_s(cooldowns, 1.0, model="gpt-5") == CREDENTIAL_S
    assert left_s(cooldowns, 1.0, credential=OTHER) is None


def test_quota_that_is_spent_with_one_key_alone_stops_its_model_at_once() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_refused_alone(KEY, "gpt-4", SPENT, 0.0)
    assert left_s(cooldowns) == CREDENTIAL_S
    assert left_s(cooldowns, model="gpt-5") is None


def test_other_failures_with_one_key_alone_stop_nothing() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_refused_alone(KEY, "gpt-4", limited(None), 0.0)
    assert left_s(cooldowns) is None


# callers


def refuse_caller(cooldowns: Cooldowns, caller: str, *instants: float) -> None:
    for now in instants:
        cooldowns.note_refusal(KEY, "gpt-4", SPENT, now, caller)


def test_cooldown_stops_the_callers_that_were_refused() -> None:
    cooldowns = Cooldowns()
    refuse_caller(cooldowns, "poisoner", 0.0, 0.1)
    assert cooldowns.find(KEY, "gpt-4", 1.0, "poisoner") is not None
    assert cooldowns.find(KEY, "gpt-4", 1.0, "victim") is None
    cooldowns.note_wait(PLACE, limited(50.0), CAP_S, 0.0, "poisoner")
    assert cooldowns.find_hint(PLACE, 1.0, "poisoner") is not None
    assert cooldowns.find_hint(PLACE, 1.0, "victim") is None


def test_caller_that_is_refused_too_is_stopped_too() -> None:
    cooldowns = Cooldowns()
    refuse_caller(cooldowns, "one", 0.0, 0.1)
    refuse_caller(cooldowns, "two", 0.2)
    assert cooldowns.find(KEY, "gpt-4", 1.0, "two") is not None
    assert cooldowns.find(KEY, "gpt-4", 1.0, "one") is not None


def test_success_of_another_caller_ends_no_cooldown() -> None:
    cooldowns = Cooldowns()
    refuse_caller(cooldowns, "poisoner", 0.0, 0.1)
    cooldowns.note_success(KEY, "gpt-4", 1.0, 1.1, "victim")
    assert cooldowns.find(KEY, "gpt-4", 1.2, "poisoner") is not None
    cooldowns.note_success(KEY, "gpt-4", 1.0, 1.3, "poisoner")
    assert cooldowns.find(KEY, "gpt-4", 1.4, "poisoner") is None


def test_call_of_another_caller_is_not_the_first_call() -> None:
    cooldowns = Cooldowns()
    cooldowns.note_wait(PLACE, limited(50.0), CAP_S, 0.0, "poisoner")
    cooldowns.note_sent((PLACE,), 50.0, "victim")
    assert cooldowns.find_hint(PLACE, 50.0, "poisoner") is None
    cooldowns.note_sent((PLACE,), 50.0, "poisoner")
    assert cooldowns.find_hint(PLACE, 50.1, "poisoner") is not None


def test_cooldown_of_many_callers_stops_all_of_them() -> None:
    cooldowns = Cooldowns()
    for number in range(100):
        cooldowns.note_wait(PLACE, limited(50.0), CAP_S, 0.0, f"caller {number}")
    assert cooldowns.find_hint(PLACE, 1.0, "victim") is not None
