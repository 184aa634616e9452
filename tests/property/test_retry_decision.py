from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.decision import FallBack, GiveUp, Retry, Step, next_step
from llm_guard.resilience.retry.limits import may_have_executed
from tests.effort import repeated
from tests.property.test_backoff import draws, retry_settings, seconds


@dataclass(frozen=True)
class Facts:
    failure: Failure
    settings: RetrySettings
    retries_done: int
    previous_s: float | None
    has_next: bool
    has_peer: bool
    has_free_peer: bool
    has_free_same_model: bool
    has_other_model: bool
    fallback_in_s: float
    has_timed_out_again: bool
    is_repeatable: bool
    can_spend: bool
    now: float
    time_left_s: float
    u: float

    @property
    def deadline_at(self) -> float:
        return self.now + self.time_left_s

    def decide(self) -> Step:
        return next_step(
            self.failure,
            retries_done=self.retries_done,
            settings=self.settings,
            previous_s=self.previous_s,
            has_next=self.has_next,
            has_peer=self.has_next and self.has_peer,
            has_free_peer=self.has_free_peer,
            has_free_same_model=self.has_next and self.has_free_same_model,
            has_other_model=self.has_next and self.has_other_model,
            fallback_at=self.now + self.fallback_in_s,
            has_timed_out_again=self.has_timed_out_again,
            is_repeatable=self.is_repeatable,
            can_spend=self.can_spend,
            failure_share=0.0,
            now=self.now,
            deadline_at=self.deadline_at,
            u=self.u,
        )


facts = st.builds(
    Facts,
    failure=st.builds(
        Failure,
        kind=st.sampled_from(FailureKind),
        detail=st.just("it failed"),
        retry_after_s=st.none() | seconds,
        limit=st.sampled_from([None, None, None, "total", "attempt", "connect"]),
        is_before_sending=st.booleans(),
        is_after_head=st.booleans(),
    ),
    settings=st.builds(
        replace,
        retry_settings,
        fallback_on=st.lists(st.sampled_from(["context_length", "content_policy"]), unique=True).map(tuple),
    ),
    retries_done=st.integers(0, 4),
    previous_s=st.none() | seconds,
    has_next=st.booleans(),
    has_peer=st.booleans(),
    has_free_peer=st.booleans(),
    has_free_same_model=st.booleans(),
    has_other_model=st.booleans(),
    fallback_in_s=st.floats(-10, 100),
    has_timed_out_again=st.booleans(),
    is_repeatable=st.booleans(),
    can_spend=st.booleans(),
    now=st.floats(0, 1e7),
    time_left_s=st.floats(-10, 1e5) | st.floats(0, 1),
    u=draws,
)


@settings(derandomize=True, deadline=None, max_examples=repeated(1000))
@given(facts)
def test_retry_is_allowed_affordable_and_over_before_the_deadline(given_facts: Facts) -> None:
    step = given_facts.decide()
    failure, chosen = given_facts.failure, given_facts.settings
    wait_s = step.after_s if isinstance(step, Retry) else step.back_after_s if isinstance(step, FallBack) else None
    if wait_s is None:
        return
    assert failure.kind.is_retriable
    assert failure.limit != "total"
    assert wait_s >= 0
    assert given_facts.now + wait_s < given_facts.deadline_at
    if failure.kind is FailureKind.RETIRED and given_facts.retries_done == 0:
        return  # the request was never read: the retry costs nothing and waits for nothing
    assert given_facts.can_spend
    assert given_facts.retries_done + 1 < chosen.max_attempts
    assert wait_s >= (failure.retry_after_s or 0)
    assert wait_s <= chosen.max_delay * 1.1


@settings(derandomize=True, deadline=None, max_examples=repeated(1000))
@given(facts)
def test_fallback_requires_another_model_that_may_do_better_in_time(given_facts: Facts) -> None:
    if isinstance(given_facts.decide(), FallBack) and given_facts.failure.kind.can_fall_back:
        assert given_facts.has_next
        assert given_facts.failure.limit != "total"
        assert given_facts.now < given_facts.deadline_at


@settings(derandomize=True, deadline=None, max_examples=repeated(1000))
@given(facts)
def test_call_is_given_up_only_when_no_other_deployment_is_left(given_facts: Facts) -> None:
    step = given_facts.decide()
    if isinstance(step, GiveUp):
        assert step.why
        kind = given_facts.failure.kind
        is_over = given_facts.failure.limit == "total" or given_facts.now >= given_facts.deadline_at
        is_done = not given_facts.is_repeatable and may_have_executed(given_facts.failure)
        is_done = is_done or given_facts.has_timed_out_again
        assert is_over or is_done or not (given_facts.has_next and kind.can_fall_back)
        is_for_other_model = given_facts.has_next and kind.label in given_facts.settings.fallback_on
        assert is_over or is_done or not (given_facts.has_other_model and is_for_other_model)


@settings(derandomize=True, deadline=None, max_examples=repeated(1000))
@given(facts)
def test_other_model_is_tried_only_where_configured(given_facts: Facts) -> None:
    step = given_facts.decide()
    if isinstance(step, FallBack) and step.to_other_model:
        assert given_facts.has_other_model
        assert given_facts.failure.kind.label in given_facts.settings.fallback_on
        assert not given_facts.failure.kind.can_fall_back
        assert given_facts.now < given_facts.deadline_at


@settings(derandomize=True, deadline=None, max_examples=repeated(1000))
@given(facts)
def test_another_model_is_preferred_only_after_a_timeout_or_where_the_wait_ends_too_late(given_facts: Facts) -> None:
    alone = replace(given_facts, has_peer=False, has_other_model=True)
    step = alone.decide()
    if isinstance(step, FallBack) and step.back_after_s is not None:
        is_slow = given_facts.failure.kind.category == "timeout"
        assert is_slow or step.back_after_s > given_facts.fallback_in_s - 1e-6


@settings(derandomize=True, deadline=None, max_examples=repeated(1000))
@given(facts)
def test_repetition_is_refused_exactly_where_it_may_execute_a_call_twice(given_facts: Facts) -> None:
    once, often = replace(given_facts, is_repeatable=False), replace(given_facts, is_repeatable=True)
    if may_have_executed(given_facts.failure):
        assert isinstance(once.decide(), GiveUp)
    else:
        assert once.decide() == often.decide()
