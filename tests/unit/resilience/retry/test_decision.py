from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import pytest

from llm_guard.outcome import Failure, FailureKind, Limit
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.decision import FallBack, GiveUp, Retry, Step, next_step

FINAL = [kind for kind in FailureKind if not kind.is_retriable and not kind.can_fall_back]
ELSEWHERE = [kind for kind in FailureKind if not kind.is_retriable and kind.can_fall_back]
RETRIABLE = [kind for kind in FailureKind if kind.is_retriable]
PLAIN = RetrySettings(max_attempts=3, jitter=0.0, adaptive=False)


@dataclass(frozen=True)
class Facts:
    kind: FailureKind = FailureKind.SERVER_ERROR
    asked: float | None = None
    is_total: bool = False
    retries_done: int = 0
    has_next: bool = False
    has_free_peer: bool = False
    has_free_same_model: bool = False
    has_only_other_models: bool = False
    has_other_model: bool = False
    fallback_at: float = inf
    has_timed_out_again: bool = False
    is_repeatable: bool = True
    is_before_sending: bool = False
    can_spend: bool = True
    failure_share: float = 0.0
    deadline_at: float = 1000.0
    settings: RetrySettings = PLAIN

    def decide(self) -> Step:
        limit: Limit | None = "total" if self.is_total else None
        failure = Failure(self.kind, "it failed", self.asked, limit, is_before_sending=self.is_before_sending)
        return next_step(
            failure,
            retries_done=self.retries_done,
            settings=self.settings,
            previous_s=None,
            has_next=self.has_next,
            has_peer=self.has_next and not self.has_only_other_models,
            has_free_peer=self.has_free_peer,
            has_free_same_model=self.has_free_same_model,
            has_other_model=self.has_other_model,
            fallback_at=self.fallback_at,
            has_timed_out_again=self.has_timed_out_again,
            is_repeatable=self.is_repeatable,
            can_spend=self.can_spend,
            failure_share=self.failure_share,
            now=100.0,
            deadline_at=self.deadline_at,
            u=0.5,
        )


SLOW = (FailureKind.TIMEOUT, FailureKind.CONNECT_TIMEOUT)
BUSY = (FailureKind.RATE_LIMIT, FailureKind.OVERLOADED)


@pytest.mark.parametrize("kind", RETRIABLE)
def test_retriable_failure_is_retried_before_another_deployment(kind: FailureKind) -> None:
    assert isinstance(Facts(kind).decide(), Retry)
    if kind not in SLOW:
        assert isinstance(Facts(kind, has_next=True).decide(), Retry)


@pytest.mark.parametrize("kind", SLOW)
def test_after_a_timeout_another_is_tried_first_and_the_same_one_after_it(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True).decide() == FallBack(back_after_s=0.025, is_last=True)
    assert Facts(kind, has_next=True, retries_done=2).decide() == FallBack()
    assert Facts(kind, has_next=True, can_spend=False).decide() == FallBack()


@pytest.mark.parametrize("kind", BUSY)
def test_deployment_without_room_waits_while_a_free_one_is_tried(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True, has_free_peer=True).decide() == FallBack(back_after_s=0.2)
    assert Facts(kind, has_next=True, has_free_peer=False).decide() == Retry(0.2)


def test_request_that_was_never_read_is_sent_again_under_any_rules() -> None:
    retired = Facts(FailureKind.RETIRED, can_spend=False, has_next=True, settings=replace(PLAIN, max_attempts=1))
    assert retired.decide() == Retry(0.0)
    assert replace(retired, retries_done=1).decide() == FallBack()


def test_flap_is_retried_in_place_though_another_is_free() -> None:
    flap = Facts(FailureKind.NETWORK, has_next=True, has_free_peer=True, has_free_same_model=True)
    assert flap.decide() == Retry(0.025)


@pytest.mark.parametrize("kind", [kind for kind in RETRIABLE if kind.can_fall_back and kind not in SLOW])
def test_free_deployment_of_the_same_model_is_preferred_to_a_wait(kind: FailureKind) -> None:
    waits_longer = replace(PLAIN, base_delay=0.2)
    failed = Facts(kind, has_next=True, has_free_peer=True, retries_done=1, settings=waits_longer)
    assert isinstance(replace(failed, has_free_same_model=True).decide(), FallBack)
    if kind not in BUSY:
        assert isinstance(failed.decide(), Retry)


def test_kind_that_fails_everywhere_is_retried_in_place_though_another_is_free() -> None:
    assert isinstance(Facts(FailureKind.TOO_EARLY, has_next=True, has_free_same_model=True).decide(), Retry)


def test_wait_grows_with_the_share_of_attempts_that_failed_lately() -> None:
    grown = Facts(failure_share=0.5, settings=replace(PLAIN, adaptive=True)).decide()
    assert waits(grown) == pytest.approx(0.2 * 1.25)


def waits(step: Step) -> float:
    assert isinstance(step, Retry)
    return step.after_s


def test_retry_waits_for_the_backoff() -> None:
    assert Facts(retries_done=0).decide() == Retry(0.2)
    assert Facts(retries_done=1).decide() == Retry(0.4)


@pytest.mark.parametrize("kind", FINAL)
def test_final_failure_ends_the_call_even_if_another_deployment_is_left(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True).decide() == GiveUp("final error")


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_failure_that_only_another_deployment_can_cure_falls_back_at_once(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True).decide() == FallBack()
    assert Facts(kind).decide() == GiveUp("not retriable")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (Facts(retries_done=2), "max_attempts reached"),
        (Facts(can_spend=False), "retry budget empty"),
        (Facts(deadline_at=100.1), "deadline"),
        (Facts(deadline_at=100.2), "deadline"),
        (Facts(asked=30.5), "Retry-After longer than retry.max_delay"),
    ],
)
def test_obstacle_falls_back_or_ends_the_call(facts: Facts, why: str) -> None:
    assert facts.decide() == GiveUp(why)
    assert replace(facts, has_next=True).decide() == FallBack()


def test_attempts_count_the_first_exchange() -> None:
    assert isinstance(Facts(retries_done=1).decide(), Retry)
    assert isinstance(Facts(retries_done=2).decide(), GiveUp)


def test_conflict_is_never_sent_to_another_deployment() -> None:
    assert isinstance(Facts(FailureKind.CONFLICT, has_next=True).decide(), Retry)
    used_up = Facts(FailureKind.CONFLICT, has_next=True, retries_done=2)
    assert used_up.decide() == GiveUp("max_attempts reached")
    asked = Facts(FailureKind.CONFLICT, has_next=True, asked=5.0)
    assert waits(asked.decide()) == pytest.approx(5.25)


def test_upstream_that_requests_a_wait_is_left_for_the_next() -> None:
    limited = Facts(FailureKind.RATE_LIMIT, asked=5.0)
    assert waits(limited.decide()) == pytest.approx(5.25)
    left = replace(limited, has_next=True).decide()
    assert left == FallBack(back_after_s=waits(limited.decide()), is_hint=True)


def test_upstream_that_requests_less_than_the_backoff_is_retried() -> None:
    assert Facts(FailureKind.RATE_LIMIT, asked=0.1, has_next=True).decide() == Retry(0.2)


def test_longest_requested_wait_is_still_granted() -> None:
    assert waits(Facts(asked=30.0).decide()) == pytest.approx(31.5)


def test_call_out_of_time_ends_in_any_case() -> None:
    assert Facts(FailureKind.TIMEOUT, is_total=True, has_next=True).decide() == GiveUp("deadline")
    assert Facts(deadline_at=100.0, has_next=True).decide() == GiveUp("deadline")
    assert Facts(FailureKind.AUTH, deadline_at=99.0, has_next=True).decide() == GiveUp("deadline")


# fallback to another model, and when it is preferred

CHEAP = Facts(
    FailureKind.RATE_LIMIT, has_next=True, has_only_other_models=True, has_other_model=True, fallback_at=105.0
)
AT_ONCE = RetrySettings(jitter=0.0, adaptive=False, fallback_after=0.0)


@pytest.mark.parametrize("kind", [kind for kind in RETRIABLE if kind not in SLOW and kind.can_fall_back])
def test_another_model_is_not_preferred_while_the_wait_for_its_own_ends_in_time(kind: FailureKind) -> None:
    assert isinstance(replace(CHEAP, kind=kind, has_free_peer=True).decide(), Retry)
    assert isinstance(replace(CHEAP, kind=kind, asked=4.5).decide(), Retry)


@pytest.mark.parametrize("kind", [kind for kind in RETRIABLE if kind.can_fall_back and kind is not FailureKind.RETIRED])
def test_another_model_is_preferred_to_a_wait_that_ends_too_late(kind: FailureKind) -> None:
    step = replace(CHEAP, kind=kind, asked=5.0).decide()
    assert step == FallBack(back_after_s=5.25, is_hint=True, is_last=True)
    assert isinstance(replace(CHEAP, kind=kind, fallback_at=99.0).decide(), FallBack)


@pytest.mark.parametrize("kind", SLOW)
def test_another_model_is_preferred_after_a_timeout(kind: FailureKind) -> None:
    assert replace(CHEAP, kind=kind).decide() == FallBack(back_after_s=0.025, is_last=True)


def test_another_model_is_tried_once_the_retries_of_its_own_are_spent() -> None:
    assert replace(CHEAP, retries_done=2).decide() == FallBack()
    assert replace(CHEAP, can_spend=False).decide() == FallBack()


def test_deployment_of_the_same_model_is_preferred_at_once_and_the_busy_one_precedes_other_models() -> None:
    busy = replace(CHEAP, has_only_other_models=False, has_free_peer=True)
    assert busy.decide() == FallBack(back_after_s=0.2, is_last=False)


def test_without_fallback_after_another_model_is_as_good_as_another_deployment() -> None:
    busy = replace(CHEAP, has_only_other_models=False, has_free_peer=True, settings=AT_ONCE, fallback_at=inf)
    assert busy.decide() == FallBack(back_after_s=0.2, is_last=True)
    assert isinstance(replace(busy, kind=FailureKind.SERVER_ERROR).decide(), Retry)


# default time limits


def test_exchange_that_a_default_limit_ends_twice_is_not_sent_a_third_time() -> None:
    slow = Facts(FailureKind.TIMEOUT, has_next=True, has_other_model=True, has_timed_out_again=True)
    assert slow.decide() == GiveUp("it timed out twice")
    assert not isinstance(replace(slow, has_timed_out_again=False).decide(), GiveUp)


ANYTHING = RetrySettings(jitter=0.0, adaptive=False, fallback_on=("context_length", "content_policy"))
NOTHING = RetrySettings(jitter=0.0, adaptive=False, fallback_on=())
TO_OTHER_MODEL = FallBack(to_other_model=True)


def test_context_too_long_for_a_model_goes_to_another_model_only() -> None:
    too_long = Facts(FailureKind.CONTEXT_LENGTH, has_next=True)
    assert too_long.decide() == GiveUp("final error")
    assert replace(too_long, has_other_model=True).decide() == TO_OTHER_MODEL
    assert replace(too_long, has_other_model=True, settings=NOTHING).decide() == GiveUp("final error")


def test_refusal_for_content_is_the_response_of_the_model_unless_the_route_disagrees() -> None:
    refused = Facts(FailureKind.CONTENT_POLICY, has_next=True, has_other_model=True)
    assert refused.decide() == GiveUp("final error")
    assert replace(refused, settings=ANYTHING).decide() == TO_OTHER_MODEL
    assert replace(refused, settings=ANYTHING, has_other_model=False).decide() == GiveUp("final error")


@pytest.mark.parametrize("kind", [kind for kind in FINAL if kind.label not in ANYTHING.fallback_on])
def test_no_other_final_failure_goes_to_another_model(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True, has_other_model=True, settings=ANYTHING).decide() == GiveUp("final error")


@pytest.mark.parametrize("kind", RETRIABLE + ELSEWHERE)
def test_failure_that_another_deployment_may_cure_does_not_skip_it_for_another_model(kind: FailureKind) -> None:
    step = Facts(kind, has_next=True, has_other_model=True, settings=ANYTHING, retries_done=2).decide()
    assert step != TO_OTHER_MODEL


def test_call_out_of_time_goes_to_no_other_model() -> None:
    too_long = Facts(FailureKind.CONTEXT_LENGTH, has_next=True, has_other_model=True)
    assert replace(too_long, deadline_at=100.0).decide() == GiveUp("deadline")
    assert replace(too_long, is_total=True).decide() == GiveUp("deadline")


# calls that must not be executed twice


@pytest.mark.parametrize("kind", [FailureKind.NETWORK, FailureKind.TIMEOUT, FailureKind.TRUNCATED])
def test_non_repeatable_call_that_may_have_been_executed_is_given_up(kind: FailureKind) -> None:
    broken = Facts(kind, has_next=True, has_other_model=True, is_repeatable=False)
    assert broken.decide() == GiveUp("not idempotent: it may have been executed")
    assert not isinstance(replace(broken, is_repeatable=True).decide(), GiveUp)


@pytest.mark.parametrize("kind", [FailureKind.NETWORK, FailureKind.TIMEOUT])
def test_call_that_was_never_sent_is_sent_again_in_any_case(kind: FailureKind) -> None:
    unsent = Facts(kind, has_next=True, is_repeatable=False, is_before_sending=True)
    assert not isinstance(unsent.decide(), GiveUp)
    assert replace(unsent, retries_done=2).decide() == FallBack()


@pytest.mark.parametrize("kind", [FailureKind.RATE_LIMIT, FailureKind.OVERLOADED, FailureKind.MODEL_LOADING])
def test_call_that_was_refused_unread_is_sent_again_in_any_case(kind: FailureKind) -> None:
    refused = Facts(kind, has_next=True, is_repeatable=False)
    assert isinstance(refused.decide(), Retry)
    assert replace(refused, retries_done=2).decide() == FallBack()


def test_non_repeatable_call_still_goes_to_another_credential_and_another_model() -> None:
    once = Facts(FailureKind.QUOTA_EXHAUSTED, has_next=True, has_other_model=True, is_repeatable=False)
    assert once.decide() == FallBack()
    assert replace(once, kind=FailureKind.CONTEXT_LENGTH).decide() == TO_OTHER_MODEL
