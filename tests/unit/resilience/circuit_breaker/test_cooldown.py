from __future__ import annotations

import pytest

from llm_guard.outcome import Answer, Failure, FailureKind
from llm_guard.policy.bench import (
    ACCEPTED_S,
    CREDENTIAL_S,
    PROBE_S,
    Bench,
    Benched,
    Key,
    as_of,
    deployment_key,
    quota_key,
)

KEY: Key = ("credential", "openai", "https://api.openai.com/v1", "digest", "")
OTHER: Key = ("credential", "azure", "https://azure/openai/v1", "digest", "")
PLACE = deployment_key(KEY, "gpt-4")
QUOTA = quota_key(KEY, "gpt-4")
CAP_S = 60.0
BODY = b'{"error": {"code": "insufficient_quota"}}'
SPENT = Failure(FailureKind.QUOTA_EXHAUSTED, "answered 429 (code insufficient_quota)")
WRONG_KEY = Failure(FailureKind.AUTH, "answered 401 (status 401)")


def limited(asked_s: float | None, detail: str = "answered 429") -> Failure:
    return Failure(FailureKind.RATE_LIMIT, detail, asked_s)


def left_s(bench: Bench, now: float = 0.0, *, model: str = "gpt-4", credential: Key = KEY) -> float | None:
    """Returns the seconds left of the longest cooldown of a credential for a model, or None."""
    stop = bench.find(credential, model, now)
    return stop.until - now if stop is not None else None


def hint_left_s(bench: Bench, now: float = 0.0) -> float | None:
    stop = bench.find_hint(PLACE, now)
    return stop.until - now if stop is not None else None


def refuse(bench: Bench, failure: Failure, *instants: float, model: str = "gpt-4") -> None:
    for now in instants:
        bench.note_refusal(KEY, model, failure, now)


def serve(bench: Bench, now: float, *, model: str = "gpt-4", credential: Key = KEY) -> None:
    """Notes a call that was sent and answered at `now`."""
    bench.note_success(credential, model, now, now)


# credentials


@pytest.mark.parametrize("failure", [SPENT, WRONG_KEY])
def test_credential_is_left_alone_after_two_refusals_in_a_row(failure: Failure) -> None:
    bench = Bench()
    refuse(bench, failure, 0.0)
    assert left_s(bench) is None
    refuse(bench, failure, 1.0)
    assert bench.find(KEY, "gpt-4", 1.0) == Benched(1.0 + CREDENTIAL_S, failure, since=1.0, callers=frozenset({""}))
    assert left_s(bench, 1.0, credential=OTHER) is None


def test_cooldown_ends_at_its_instant_and_not_before() -> None:
    bench = Bench()
    refuse(bench, SPENT, 0.0, 0.0)
    assert left_s(bench, CREDENTIAL_S - 0.001) is not None
    assert left_s(bench, CREDENTIAL_S) is None


def test_credential_that_is_still_refused_after_its_cooldown_is_left_alone_at_once() -> None:
    bench = Bench()
    refuse(bench, SPENT, 0.0, 0.0, CREDENTIAL_S)
    assert left_s(bench, CREDENTIAL_S) == CREDENTIAL_S


@pytest.mark.parametrize("failure", [SPENT, WRONG_KEY])
def test_success_in_between_begins_the_count_again(failure: Failure) -> None:
    bench = Bench()
    refuse(bench, failure, 0.0)
    serve(bench, 1.0)
    refuse(bench, failure, 40.0)
    assert left_s(bench, 40.0) is None
    refuse(bench, failure, 41.0)
    assert left_s(bench, 41.0) is not None


def test_success_of_another_credential_does_not_help() -> None:
    bench = Bench()
    refuse(bench, SPENT, 0.0)
    serve(bench, 1.0, credential=OTHER)
    refuse(bench, SPENT, 2.0)
    assert left_s(bench, 2.0) is not None


def test_quota_that_names_a_time_does_not_stop_the_credential_for_it() -> None:
    """The quota may be one model's for the day: another model of the same credential must be tried soon."""
    bench = Bench()
    refuse(bench, Failure(FailureKind.QUOTA_EXHAUSTED, "per day", 39_043.0), 0.0, 0.0)
    assert left_s(bench) == CREDENTIAL_S


def test_missing_permission_is_about_the_request_and_stops_no_credential() -> None:
    """A caller can provoke this failure: it must not block a credential that others share."""
    bench = Bench()
    refuse(bench, Failure(FailureKind.PERMISSION, "answered 403"), *[0.0] * 10)
    assert bench.snapshot(0.0) == {}


def test_key_that_was_accepted_a_moment_ago_is_not_taken_for_a_wrong_one() -> None:
    """A caller that can provoke two 401 in a row must not block a key that works for others."""
    bench = Bench()
    serve(bench, 0.0)
    refuse(bench, WRONG_KEY, *[ACCEPTED_S - 1] * 10)
    assert left_s(bench, ACCEPTED_S - 1) is None
    refuse(bench, WRONG_KEY, ACCEPTED_S, ACCEPTED_S)
    assert left_s(bench, ACCEPTED_S) is not None


def test_balance_may_be_spent_a_moment_after_a_success() -> None:
    bench = Bench()
    serve(bench, 0.0)
    refuse(bench, SPENT, 0.0, 0.0)
    assert left_s(bench) is not None


# quota of one model


def test_spent_quota_of_one_model_stops_no_other_model() -> None:
    bench = Bench()
    refuse(bench, SPENT, *[0.0] * 20)
    assert left_s(bench) == CREDENTIAL_S
    assert left_s(bench, model="gpt-5") is None


def test_second_model_without_a_success_in_between_stops_the_whole_credential() -> None:
    bench = Bench()
    refuse(bench, SPENT, 0.0)
    refuse(bench, SPENT, 1.0, model="gpt-5")
    assert left_s(bench, 1.0, model="o3") == CREDENTIAL_S


def test_second_model_after_a_success_stops_only_itself() -> None:
    bench = Bench()
    refuse(bench, SPENT, 0.0, 0.0)
    serve(bench, 1.0, model="o3")
    refuse(bench, SPENT, 2.0, 2.0, model="gpt-5")
    assert left_s(bench, 3.0) is not None
    assert left_s(bench, 3.0, model="gpt-5") is not None
    assert left_s(bench, 3.0, model="o3") is None


def test_refused_key_stops_all_models() -> None:
    bench = Bench()
    refuse(bench, WRONG_KEY, 0.0, 0.0)
    assert left_s(bench, model="gpt-5") == CREDENTIAL_S
    assert left_s(bench, PROBE_S, model="gpt-5") is not None


def test_model_that_has_not_reported_a_spent_quota_may_try_the_credential_now_and_then() -> None:
    """Two models without quota must not block a third one that has its own."""
    bench = Bench()
    refuse(bench, SPENT, 0.0, 0.0)
    refuse(bench, SPENT, 0.0, model="gpt-5")
    assert left_s(bench, PROBE_S - 0.1, model="o3") is not None
    assert left_s(bench, PROBE_S, model="o3") is None
    bench.note_sent((KEY,), PROBE_S)
    assert left_s(bench, PROBE_S, model="o3") is not None
    assert left_s(bench, PROBE_S, model="gpt-5") is not None
    serve(bench, PROBE_S, model="o3")
    assert left_s(bench, PROBE_S, model="o3") is None
    assert left_s(bench, PROBE_S, model="gpt-4") is not None


def test_names_that_callers_make_up_do_not_fill_the_memory() -> None:
    bench = Bench()
    for number in range(10_000):
        refuse(bench, SPENT, 0.0, model=f"gpt-{number}")
    spent = bench._entries[KEY].spent
    assert spent is not None
    assert len(spent) <= 64


# deployments


def test_deployment_is_left_alone_as_long_as_its_hint_says() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(50.0), CAP_S, 0.0)
    assert bench.find_hint(PLACE, 49.9) == Benched(50.0, limited(50.0), callers=frozenset({""}))
    assert bench.find_hint(PLACE, 50.0) is None


def test_deployment_that_sent_no_hint_is_not_left_alone() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(None), CAP_S, 0.0)
    assert bench.find_hint(PLACE, 0.0) is None


def test_hint_is_obeyed_up_to_the_cap() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(86_400.0), CAP_S, 0.0)
    assert hint_left_s(bench) == CAP_S


def test_longer_cooldown_outlasts_a_shorter_one_that_comes_later() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(55.0, "long"), CAP_S, 0.0)
    bench.note_wait(PLACE, limited(5.0, "short"), CAP_S, 1.0)
    stop = bench.find_hint(PLACE, 1.0)
    assert stop is not None
    assert (stop.until, stop.failure.detail) == (55.0, "long")
    bench.note_wait(PLACE, limited(58.0, "longer"), CAP_S, 1.0)
    assert hint_left_s(bench, 1.0) == 58.0


def test_of_several_cooldowns_the_longest_is_found() -> None:
    bench = Bench()
    refuse(bench, SPENT, 0.0, 0.0)
    refuse(bench, WRONG_KEY, 2.0, 2.0)
    assert left_s(bench, 2.0) == CREDENTIAL_S
    assert left_s(bench, 2.0, model="gpt-5") == CREDENTIAL_S


# end of a cooldown


def resting(hint_s: float = 50.0) -> Bench:
    bench = Bench()
    bench.note_wait(PLACE, limited(hint_s), CAP_S, 0.0)
    return bench


def test_one_call_goes_first_and_the_others_wait_for_what_becomes_of_it() -> None:
    bench = resting()
    assert hint_left_s(bench, 50.0) is None
    bench.note_sent((PLACE,), 50.0)
    assert hint_left_s(bench, 50.0) == PROBE_S
    bench.note_success(KEY, "gpt-4", 50.0, 50.5)
    assert hint_left_s(bench, 50.5) is None


def test_call_that_goes_first_and_is_refused_begins_the_next_cooldown() -> None:
    bench = resting()
    bench.note_sent((PLACE,), 50.0)
    bench.note_wait(PLACE, limited(20.0), CAP_S, 50.2)
    assert hint_left_s(bench, 50.2) == pytest.approx(20.0)
    assert hint_left_s(bench, 71.0) is None
    bench.note_sent((PLACE,), 71.0)
    assert hint_left_s(bench, 71.0) == PROBE_S


def test_call_that_goes_first_and_never_comes_back_keeps_the_others_out_only_for_a_moment() -> None:
    bench = resting()
    bench.note_sent((PLACE,), 50.0)
    assert hint_left_s(bench, 50.0 + PROBE_S) is None
    bench.note_sent((PLACE,), 50.0 + PROBE_S)
    assert hint_left_s(bench, 50.0 + PROBE_S) is None


def test_call_that_was_sent_in_spite_of_a_cooldown_does_not_go_first_at_its_end() -> None:
    bench = resting()
    bench.note_sent((PLACE,), 49.5)
    assert hint_left_s(bench, 50.0) is None
    bench.note_sent((PLACE,), 50.0)
    assert hint_left_s(bench, 50.0) == PROBE_S


def test_success_of_a_call_that_was_sent_before_ends_no_cooldown() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(50.0), CAP_S, 5.0)
    bench.note_success(KEY, "gpt-4", 4.9, 6.0)
    assert hint_left_s(bench, 6.0) == 49.0
    bench.note_success(KEY, "gpt-4", 5.1, 6.0)
    assert hint_left_s(bench, 6.0) is None


def test_lifted_cooldowns_are_over_and_those_that_there_were_are_returned() -> None:
    bench = resting()
    refuse(bench, SPENT, 0.0, 0.0)
    assert bench.lift([PLACE, QUOTA, OTHER], 1.0) == [PLACE, QUOTA]
    assert (hint_left_s(bench), left_s(bench)) == (None, None)
    assert bench.lift([PLACE, QUOTA, OTHER], 1.0) == []


def test_cooldown_that_is_brought_to_its_end_lets_one_call_go_first() -> None:
    bench = resting()
    bench.expire([PLACE, OTHER], 10.0)
    assert hint_left_s(bench, 10.0) is None
    bench.note_sent((PLACE,), 10.0)
    assert hint_left_s(bench, 10.0) == PROBE_S
    bench.expire([PLACE], 11.0)
    assert hint_left_s(bench, 11.0) == PROBE_S - 1.0


def test_hints_of_an_upstream_are_found_for_one_model_or_for_all() -> None:
    bench = resting()
    other = deployment_key(OTHER, "gpt-4")
    bench.note_wait(other, limited(50.0), CAP_S, 0.0)
    assert bench.hints("openai", None) == bench.hints("openai", "gpt-4") == [PLACE]
    assert bench.hints("openai", "gpt-5") == []
    assert bench.hints("azure", None) == [other]


# error responses during a cooldown


def test_wait_that_is_told_is_the_one_that_is_left() -> None:
    told = as_of(Benched(60.0, limited(55.0)), 47.5)
    assert told == limited(12.5)


def test_answer_is_told_to_others_without_what_belongs_to_one_call() -> None:
    headers = (
        ("Content-Type", "application/json"), ("content-encoding", "gzip"), ("Set-Cookie", "__cf_bm=1"),
        ("x-request-id", "req_1"), ("date", "today"), ("retry-after", "60"),
    )  # fmt: skip
    answer = Answer(429, "Too Many Requests", headers, BODY)
    bench = Bench()
    bench.note_wait(PLACE, Failure(FailureKind.RATE_LIMIT, "limited", 60.0, answer=answer), CAP_S, 0.0)
    rest = bench.find_hint(PLACE, 0.0)
    assert rest is not None
    assert rest.failure.answer == Answer(429, "Too Many Requests", headers[:2], BODY)


@pytest.mark.parametrize(("size", "is_kept"), [(16_384, True), (16_385, False)])
def test_long_answer_is_not_kept(size: int, is_kept: bool) -> None:
    answer = Answer(429, "", (), b"x" * size)
    bench = Bench()
    bench.note_wait(PLACE, Failure(FailureKind.RATE_LIMIT, "limited", 60.0, answer=answer), CAP_S, 0.0)
    rest = bench.find_hint(PLACE, 0.0)
    assert rest is not None
    assert rest.failure.answer == (answer if is_kept else None)


# bounds


def fill(bench: Bench, count: int, now: float = 0.0) -> None:
    for number in range(count):
        bench.note_wait(("credential", "openai", str(number)), limited(60.0), CAP_S, now)


def test_bench_has_room_for_4096_and_forgets_the_oldest_first() -> None:
    bench = Bench()
    fill(bench, 5000)
    resting = bench.snapshot(0.0)
    assert len(resting) == 4096
    assert ("credential", "openai", "903") not in resting
    assert ("credential", "openai", "904") in resting


def test_flood_of_other_keys_does_not_push_out_one_that_stops_calls() -> None:
    bench = resting()
    for number in range(20_000):
        bench.note_refusal(("credential", "openai", str(number)), "gpt-4", WRONG_KEY, 0.0)
        if number % 1000 == 0:
            assert hint_left_s(bench) is not None
            bench.note_stopped((KEY, QUOTA, PLACE))


def test_snapshot_shows_what_stops_calls_now() -> None:
    bench = resting()
    refuse(bench, SPENT, 0.0)
    serve(bench, 0.0, credential=OTHER)
    assert bench.snapshot(0.0) == {PLACE: Benched(50.0, limited(50.0), callers=frozenset({""}))}
    assert bench.snapshot(50.0) == {}
    bench.note_sent((PLACE,), 50.0)
    assert bench.snapshot(50.0) == {PLACE: Benched(50.0 + PROBE_S, limited(50.0), callers=frozenset({""}))}


def test_bench_is_surely_empty_some_time_after_the_last_cooldown() -> None:
    bench = Bench()
    assert bench.quiet_from <= 0.0
    bench.note_wait(PLACE, limited(50.0), CAP_S, 0.0)
    assert bench.quiet_from > 50.0
    assert bench.quiet_from <= 80.0


def test_call_that_goes_first_long_after_the_end_of_a_cooldown_ends_it_for_the_others_too() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(0.25), CAP_S, 0.0)
    assert hint_left_s(bench, 30.0) is None
    bench.note_sent([PLACE], 30.0)
    assert hint_left_s(bench, 30.0) is not None
    bench.note_success(KEY, "gpt-4", 30.0, 31.0)
    assert hint_left_s(bench, 31.0) is None


# key pools


def test_key_that_was_refused_where_another_one_was_not_is_left_alone_at_once() -> None:
    bench = Bench()
    serve(bench, 0.0)  # two refusals in a row would not be enough after this
    bench.note_refused_alone(KEY, "gpt-4", WRONG_KEY, 1.0)
    assert left_s(bench, 1.0) == CREDENTIAL_S
    assert left_s(bench, 1.0, model="gpt-5") == CREDENTIAL_S
    assert left_s(bench, 1.0, credential=OTHER) is None


def test_quota_that_is_spent_with_one_key_alone_stops_its_model_at_once() -> None:
    bench = Bench()
    bench.note_refused_alone(KEY, "gpt-4", SPENT, 0.0)
    assert left_s(bench) == CREDENTIAL_S
    assert left_s(bench, model="gpt-5") is None


def test_other_failures_with_one_key_alone_stop_nothing() -> None:
    bench = Bench()
    bench.note_refused_alone(KEY, "gpt-4", limited(None), 0.0)
    assert left_s(bench) is None


# callers


def refuse_caller(bench: Bench, caller: str, *instants: float) -> None:
    for now in instants:
        bench.note_refusal(KEY, "gpt-4", SPENT, now, caller)


def test_cooldown_stops_the_callers_that_were_refused() -> None:
    bench = Bench()
    refuse_caller(bench, "poisoner", 0.0, 0.1)
    assert bench.find(KEY, "gpt-4", 1.0, "poisoner") is not None
    assert bench.find(KEY, "gpt-4", 1.0, "victim") is None
    bench.note_wait(PLACE, limited(50.0), CAP_S, 0.0, "poisoner")
    assert bench.find_hint(PLACE, 1.0, "poisoner") is not None
    assert bench.find_hint(PLACE, 1.0, "victim") is None


def test_caller_that_is_refused_too_is_stopped_too() -> None:
    bench = Bench()
    refuse_caller(bench, "one", 0.0, 0.1)
    refuse_caller(bench, "two", 0.2)
    assert bench.find(KEY, "gpt-4", 1.0, "two") is not None
    assert bench.find(KEY, "gpt-4", 1.0, "one") is not None


def test_success_of_another_caller_ends_no_cooldown() -> None:
    bench = Bench()
    refuse_caller(bench, "poisoner", 0.0, 0.1)
    bench.note_success(KEY, "gpt-4", 1.0, 1.1, "victim")
    assert bench.find(KEY, "gpt-4", 1.2, "poisoner") is not None
    bench.note_success(KEY, "gpt-4", 1.0, 1.3, "poisoner")
    assert bench.find(KEY, "gpt-4", 1.4, "poisoner") is None


def test_call_of_another_caller_is_not_the_one_that_goes_first() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(50.0), CAP_S, 0.0, "poisoner")
    bench.note_sent((PLACE,), 50.0, "victim")
    assert bench.find_hint(PLACE, 50.0, "poisoner") is None
    bench.note_sent((PLACE,), 50.0, "poisoner")
    assert bench.find_hint(PLACE, 50.1, "poisoner") is not None


def test_cooldown_of_a_crowd_stops_everybody() -> None:
    bench = Bench()
    for number in range(100):
        bench.note_wait(PLACE, limited(50.0), CAP_S, 0.0, f"caller {number}")
    assert bench.find_hint(PLACE, 1.0, "victim") is not None
