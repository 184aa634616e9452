from __future__ import annotations

import pytest

from llm_guard.outcome import Answer, Failure, FailureKind
from llm_guard.policy.bench import CREDENTIAL_S, MAX_S, Bench, Benched, Key, as_of

KEY: Key = ("credential", "openai")
OTHER: Key = ("credential", "azure")
PLACE: Key = ("deployment", "openai", "gpt-4")
BODY = b'{"error": {"code": "insufficient_quota"}}'
SPENT = Failure(FailureKind.QUOTA_EXHAUSTED, "answered 429 (code insufficient_quota)")
WRONG_KEY = Failure(FailureKind.AUTH, "answered 401 (status 401)")


def limited(asked_s: float | None, detail: str = "answered 429") -> Failure:
    return Failure(FailureKind.RATE_LIMIT, detail, asked_s)


def resting_s(bench: Bench, *keys: Key, now: float = 0.0) -> float | None:
    """Seconds left of the longest rest."""
    rest = bench.find(keys, now)
    return rest.until - now if rest is not None else None


# credentials


@pytest.mark.parametrize("failure", [SPENT, WRONG_KEY])
def test_credential_rests_after_two_refusals_in_a_row(failure: Failure) -> None:
    bench = Bench()
    bench.note_refusal(KEY, failure, 0.0)
    assert bench.find((KEY,), 0.0) is None
    bench.note_refusal(KEY, failure, 1.0)
    assert bench.find((KEY,), 1.0) == Benched(1.0 + CREDENTIAL_S, failure)
    assert bench.find((OTHER,), 1.0) is None


def test_rest_ends_at_its_instant_and_not_before() -> None:
    bench = Bench()
    for _ in range(2):
        bench.note_refusal(KEY, SPENT, 0.0)
    assert bench.find((KEY,), 29.999) is not None
    assert bench.find((KEY,), 30.0) is None


def test_credential_that_is_still_refused_after_its_rest_rests_again_at_once() -> None:
    bench = Bench()
    for now in (0.0, 0.0, 30.0):
        bench.note_refusal(KEY, SPENT, now)
    assert resting_s(bench, KEY, now=30.0) == CREDENTIAL_S


def test_success_in_between_begins_the_count_anew() -> None:
    bench = Bench()
    bench.note_refusal(KEY, SPENT, 0.0)
    bench.note_success(KEY, 1.0)
    bench.note_refusal(KEY, SPENT, 2.0)
    assert bench.find((KEY,), 2.0) is None
    bench.note_refusal(KEY, SPENT, 3.0)
    assert bench.find((KEY,), 3.0) is not None


def test_success_of_another_credential_does_not_help() -> None:
    bench = Bench()
    bench.note_refusal(KEY, SPENT, 0.0)
    bench.note_success(OTHER, 1.0)
    bench.note_refusal(KEY, SPENT, 2.0)
    assert bench.find((KEY,), 2.0) is not None


def test_quota_that_names_a_time_does_not_bench_the_credential_for_it() -> None:
    """It may be one model's window for the day: another model of the same credential must be asked soon."""
    bench = Bench()
    for _ in range(2):
        bench.note_refusal(KEY, Failure(FailureKind.QUOTA_EXHAUSTED, "per day", 39_043.0), 0.0)
    assert resting_s(bench, KEY) == CREDENTIAL_S


def test_missing_permission_is_about_what_was_asked_for_and_benches_nobody() -> None:
    """A caller can provoke it: it must not take a shared credential from everybody else."""
    bench = Bench()
    for _ in range(10):
        bench.note_refusal(KEY, Failure(FailureKind.PERMISSION, "answered 403"), 0.0)
    assert bench.snapshot(0.0) == {}


def test_key_that_was_accepted_a_moment_ago_is_not_taken_for_a_wrong_one() -> None:
    """Whoever can provoke two 401 in a row must not bench a key with which others are served."""
    bench = Bench()
    bench.note_success(KEY, 0.0)
    for _ in range(10):
        bench.note_refusal(KEY, WRONG_KEY, CREDENTIAL_S - 1)
    assert bench.find((KEY,), CREDENTIAL_S - 1) is None
    for _ in range(2):
        bench.note_refusal(KEY, WRONG_KEY, CREDENTIAL_S)
    assert bench.find((KEY,), CREDENTIAL_S) is not None


def test_balance_may_be_spent_a_moment_after_a_success() -> None:
    bench = Bench()
    bench.note_success(KEY, 0.0)
    for _ in range(2):
        bench.note_refusal(KEY, SPENT, 0.0)
    assert bench.find((KEY,), 0.0) is not None


# deployments


def test_deployment_rests_as_long_as_it_asked_for() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(60.0), 0.0)
    assert bench.find((PLACE,), 59.9) == Benched(60.0, limited(60.0))
    assert bench.find((PLACE,), 60.0) is None


def test_deployment_that_asked_for_nothing_does_not_rest() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(None), 0.0)
    assert bench.find((PLACE,), 0.0) is None


def test_nobody_rests_for_more_than_a_day() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(1e9), 0.0)
    assert resting_s(bench, PLACE) == MAX_S


def test_longer_rest_outlasts_a_shorter_one_that_comes_later() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(600.0, "long"), 0.0)
    bench.note_wait(PLACE, limited(5.0, "short"), 1.0)
    rest = bench.find((PLACE,), 1.0)
    assert rest is not None
    assert (rest.until, rest.failure.detail) == (600.0, "long")
    bench.note_wait(PLACE, limited(700.0, "longer"), 1.0)
    assert resting_s(bench, PLACE, now=1.0) == 700.0


def test_of_several_rests_the_longest_is_found() -> None:
    bench = Bench()
    for _ in range(2):
        bench.note_refusal(KEY, SPENT, 0.0)
    bench.note_wait(PLACE, limited(60.0), 0.0)
    assert resting_s(bench, KEY, PLACE) == resting_s(bench, PLACE, KEY) == 60.0
    assert resting_s(bench, KEY, PLACE, now=60.0) is None
    assert bench.find((), 0.0) is None


# what is told


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
    bench.note_wait(PLACE, Failure(FailureKind.RATE_LIMIT, "limited", 60.0, answer=answer), 0.0)
    rest = bench.find((PLACE,), 0.0)
    assert rest is not None
    assert rest.failure.answer == Answer(429, "Too Many Requests", headers[:2], BODY)


@pytest.mark.parametrize(("size", "is_kept"), [(16_384, True), (16_385, False)])
def test_long_answer_is_not_kept(size: int, is_kept: bool) -> None:
    answer = Answer(429, "", (), b"x" * size)
    bench = Bench()
    bench.note_wait(PLACE, Failure(FailureKind.RATE_LIMIT, "limited", 60.0, answer=answer), 0.0)
    rest = bench.find((PLACE,), 0.0)
    assert rest is not None
    assert rest.failure.answer == (answer if is_kept else None)


# how many


def fill(bench: Bench, count: int, now: float = 0.0) -> None:
    for number in range(count):
        bench.note_wait(("credential", "openai", str(number)), limited(60.0), now)


def test_bench_has_room_for_4096_and_forgets_the_oldest_first() -> None:
    bench = Bench()
    fill(bench, 5000)
    resting = bench.snapshot(0.0)
    assert len(resting) == 4096
    assert ("credential", "openai", "903") not in resting
    assert ("credential", "openai", "904") in resting


def test_flood_of_other_keys_does_not_push_out_one_that_is_asked_for() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(60.0), 0.0)
    for number in range(20_000):
        bench.note_refusal(("credential", "openai", str(number)), WRONG_KEY, 0.0)
        if number % 1000 == 0:
            assert bench.find((PLACE,), 0.0) is not None


def test_snapshot_shows_who_rests_now() -> None:
    bench = Bench()
    bench.note_wait(PLACE, limited(60.0), 0.0)
    bench.note_refusal(KEY, SPENT, 0.0)
    bench.note_success(OTHER, 0.0)
    assert bench.snapshot(0.0) == {PLACE: Benched(60.0, limited(60.0))}
    assert bench.snapshot(60.0) == {}
