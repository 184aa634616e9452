from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from llm_guard.outcome import Failure, FailureKind
from llm_guard.policy.backoff import RetrySettings
from llm_guard.policy.next_step import FallBack, GiveUp, Retry, Step, next_step

FINAL = [kind for kind in FailureKind if not kind.is_retriable and not kind.can_fall_back]
ELSEWHERE = [kind for kind in FailureKind if not kind.is_retriable and kind.can_fall_back]
RETRIABLE = [kind for kind in FailureKind if kind.is_retriable]


@dataclass(frozen=True)
class Facts:
    kind: FailureKind = FailureKind.SERVER_ERROR
    asked: float | None = None
    is_total: bool = False
    retries_done: int = 0
    has_next: bool = False
    can_spend: bool = True
    deadline_at: float = 1000.0

    def decide(self) -> Step:
        failure = Failure(self.kind, "it failed", self.asked, "total" if self.is_total else None)
        return next_step(
            failure,
            retries_done=self.retries_done,
            settings=RetrySettings(jitter=0.0),
            previous_s=None,
            has_next=self.has_next,
            can_spend=self.can_spend,
            now=100.0,
            deadline_at=self.deadline_at,
            u=0.5,
        )


@pytest.mark.parametrize("kind", RETRIABLE)
def test_retriable_failure_is_retried_before_anyone_else_is_asked(kind: FailureKind) -> None:
    assert isinstance(Facts(kind).decide(), Retry)
    assert isinstance(Facts(kind, has_next=True).decide(), Retry)


def waits(step: Step) -> float:
    assert isinstance(step, Retry)
    return step.after_s


def test_retry_waits_as_long_as_backoff_says() -> None:
    assert Facts(retries_done=0).decide() == Retry(0.2)
    assert Facts(retries_done=1).decide() == Retry(0.4)


@pytest.mark.parametrize("kind", FINAL)
def test_final_failure_ends_the_call_even_if_another_could_be_asked(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True).decide() == GiveUp("final error")


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_failure_that_only_another_deployment_can_cure_falls_back_at_once(kind: FailureKind) -> None:
    assert Facts(kind, has_next=True).decide() == FallBack()
    assert Facts(kind).decide() == GiveUp("not retriable")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (Facts(retries_done=2), "attempts used up"),
        (Facts(can_spend=False), "retry budget empty"),
        (Facts(deadline_at=100.1), "deadline"),
        (Facts(deadline_at=100.2), "deadline"),
        (Facts(asked=30.5), "upstream asks to wait longer than max_delay"),
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
    assert used_up.decide() == GiveUp("attempts used up")
    asked = Facts(FailureKind.CONFLICT, has_next=True, asked=5.0)
    assert waits(asked.decide()) == pytest.approx(5.25)


def test_upstream_that_asks_to_wait_is_left_for_the_next() -> None:
    limited = Facts(FailureKind.RATE_LIMIT, asked=5.0)
    assert waits(limited.decide()) == pytest.approx(5.25)
    assert replace(limited, has_next=True).decide() == FallBack()


def test_upstream_that_asks_for_less_than_we_wait_anyway_is_retried() -> None:
    assert Facts(FailureKind.RATE_LIMIT, asked=0.1, has_next=True).decide() == Retry(0.2)


def test_longest_wait_that_is_asked_for_is_still_granted() -> None:
    assert waits(Facts(asked=30.0).decide()) == pytest.approx(31.5)


def test_call_out_of_time_ends_whatever_else_holds() -> None:
    assert Facts(FailureKind.TIMEOUT, is_total=True, has_next=True).decide() == GiveUp("deadline")
    assert Facts(deadline_at=100.0, has_next=True).decide() == GiveUp("deadline")
    assert Facts(FailureKind.AUTH, deadline_at=99.0, has_next=True).decide() == GiveUp("deadline")
