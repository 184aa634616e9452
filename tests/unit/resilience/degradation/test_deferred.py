"""Which calls are deferred, and what follows a round of attempts that produced no response."""

from __future__ import annotations

import pytest

from llm_guard.outcome import GATEWAYS_DOING, Failure, FailureKind, Refusal, RefusedBy, UpstreamErrorResponse
from llm_guard.resilience.degradation.deferred import DeferredSettings, EndDeferred, RetryDeferred, decide_after_round

BUSY = Failure(FailureKind.OVERLOADED, "busy")


def follows(
    end: Failure | Refusal,
    *,
    rounds: int = 1,
    is_repeatable: bool = True,
    is_own_doing: bool = False,
    left_s: float = 3600.0,
    u: float = 0.5,
) -> RetryDeferred | EndDeferred:
    return decide_after_round(
        end, rounds=rounds, is_repeatable=is_repeatable, is_own_doing=is_own_doing, left_s=left_s, u=u
    )  # fmt: skip


@pytest.mark.parametrize(
    ("when", "asked_for", "expected"),
    [
        ("off", True, False),
        ("on_request", True, True),
        ("on_request", False, False),
        ("on_failure", True, True),
        ("on_failure", False, False),
        ("always", False, True),
    ],
)
def test_mode_decides_which_calls_are_deferred_at_once(when: str, asked_for: bool, expected: bool) -> None:
    assert DeferredSettings(mode=when).is_at_once(is_asked_for=asked_for) is expected  # type: ignore[arg-type]


def test_waits_double_up_to_a_minute() -> None:
    waits = [step.after_s for rounds in range(1, 12) if isinstance(step := follows(BUSY, rounds=rounds), RetryDeferred)]
    assert waits == [0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 45.0, 45.0, 45.0, 45.0, 45.0]


def test_retry_after_of_the_provider_is_obeyed() -> None:
    step = follows(Failure(FailureKind.RATE_LIMIT, "slow down", retry_after_s=300.0))
    assert isinstance(step, RetryDeferred)
    assert step.after_s == pytest.approx(315.0)
    held = Refusal(503, "breaker_open", "failing", by="breaker", retry_after_s=20.0)
    step = follows(held)
    assert isinstance(step, RetryDeferred)
    assert step.after_s == pytest.approx(21.0)


def test_nothing_is_sent_after_the_deadline() -> None:
    assert follows(BUSY, left_s=0.8) == RetryDeferred(0.75)
    assert follows(BUSY, left_s=0.75) == EndDeferred("deadline")
    assert follows(BUSY, left_s=-1.0) == EndDeferred("deadline")


@pytest.mark.parametrize("kind", list(FailureKind), ids=lambda kind: kind.label)
def test_failure_that_may_pass_within_an_hour_is_retried(kind: FailureKind) -> None:
    renewed = {"certificate", "scaling_up", "quota_exhausted", "window_exhausted", "auth", "account_blocked", "blocked"}
    is_again = isinstance(follows(Failure(kind, "x")), RetryDeferred)
    assert is_again == (kind.is_retriable or kind.label in renewed)


def test_clients_own_doing_is_never_tried_again() -> None:
    assert follows(Failure(FailureKind.AUTH, "no key"), is_own_doing=True) == EndDeferred(
        "caused by the request itself"
    )


@pytest.mark.parametrize(
    ("by", "is_again"),
    [("breaker", True), ("limit", True), ("client_limit", True), ("cooldown", True), ("deadline", True),
     ("drain", True),
     ("scope", False), ("route", False), ("request", False), ("auth", False), (None, False)],
)  # fmt: skip
def test_refusal_passes_unless_it_is_of_the_request_itself(by: RefusedBy | None, is_again: bool) -> None:
    refusal = Refusal(503, "x", "x", by=by)
    assert isinstance(follows(refusal, is_own_doing=by not in GATEWAYS_DOING), RetryDeferred) == is_again


def test_call_that_may_have_been_executed_is_repeated_only_where_that_is_safe() -> None:
    reset = Failure(FailureKind.NETWORK, "reset")
    assert isinstance(follows(reset), RetryDeferred)
    assert follows(reset, is_repeatable=False) == EndDeferred("not idempotent: it may have been executed")
    at_the_door = Failure(FailureKind.OVERLOADED, "503", answer=UpstreamErrorResponse(503, "", (), b""))
    assert isinstance(follows(at_the_door, is_repeatable=False), RetryDeferred)
    never_sent = Failure(FailureKind.CONNECT_TIMEOUT, "no answer", is_before_sending=True)
    assert isinstance(follows(never_sent, is_repeatable=False), RetryDeferred)
