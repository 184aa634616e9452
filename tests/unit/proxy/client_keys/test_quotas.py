"""Limits of client keys: reservation, correction, counting, and persistence over a reload."""

from __future__ import annotations

from typing import Any

import pytest

from llm_guard.config.clients import ClientKey
from llm_guard.dialects.sse import Usage
from llm_guard.outcome import Failure, FailureKind, Refusal
from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.client_keys.quotas import ClientQuotas, estimated_tokens, settle, used_tokens
from llm_guard.resilience.client_keys.limits import Reservation
from tests.fakes.clock import ManualClock
from tests.fakes.script import SERVER_ERROR, new_call, new_target

LEFT = Failure(FailureKind.CLIENT_CANCELLED, "the client disconnected")


def key(**limits: Any) -> ClientKey:
    return ClientKey.model_validate({"name": "app", "key": "k-app", "limits": limits})


def quotas(**limits: Any) -> ClientQuotas:
    made = ClientQuotas(ManualClock())
    made.adopt([key(**limits)])
    return made


def call(**facts: Any) -> Call:
    return new_call(new_target(), client_key="app", body=b"x" * 400, max_tokens=100, **facts)


def attempted(**facts: Any) -> Call:
    made = call(**facts)
    made.attempts.append(Attempt(new_target(), 1000.0))
    return made


def test_refusals_are_counted_by_key_and_limit() -> None:
    limited = quotas(concurrency=1)
    assert limited.reserve(call()) is None
    for _ in range(2):
        assert isinstance(limited.reserve(call()), Refusal)
    assert limited.refusals == {("app", "concurrency"): 2}


def test_call_that_is_over_makes_room() -> None:
    limited, first = quotas(concurrency=1), call()
    assert limited.reserve(first) is None
    assert first.reservation is not None
    settle(first, first.reservation)
    assert limited.reserve(call()) is None


def test_reload_preserves_usage_and_changes_the_limit() -> None:
    limited = quotas(concurrency=1)
    assert limited.reserve(call()) is None
    limited.adopt([key(concurrency=2)])
    assert limited.reserve(call()) is None
    assert isinstance(limited.reserve(call()), Refusal)


def test_key_that_had_no_limits_for_a_while_has_used_what_it_had_used() -> None:
    limited = quotas(concurrency=1, tokens_per_day=1000)
    assert limited.reserve(call()) is None
    limited.adopt([key()])
    assert limited.reserve(call()) is None  # without limits
    limited.adopt([key(concurrency=1, tokens_per_day=1000)])
    assert isinstance(limited.reserve(call()), Refusal)
    assert [tokens for _, _, tokens in limited.days()] == [200]


def test_key_that_was_deleted_begins_anew() -> None:
    limited = quotas(concurrency=1)
    assert limited.reserve(call()) is None
    limited.adopt([])
    limited.adopt([key(concurrency=1)])
    assert limited.reserve(call()) is None


def test_every_choice_is_reserved() -> None:
    assert estimated_tokens(call()) == 100 + 100
    assert estimated_tokens(call(choices=3)) == 100 + 300


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
def test_counting_tokens_uses_none(path: str) -> None:
    counting = call()
    counting.path = path
    assert estimated_tokens(counting) == 0


def test_upload_with_output_alone_in_its_usage_does_not_pay_for_the_size_of_its_file() -> None:
    made = attempted(usage=Usage(None, 3))
    made.content_type = "multipart/form-data; boundary=b"
    assert quotas(tokens_per_minute=1000).reserve(made) is None
    assert isinstance(made.reservation, Reservation)
    assert used_tokens(made, made.reservation) == 3


@pytest.mark.parametrize(
    ("failure", "usage", "used"),
    [
        (None, Usage(7, 3), 10),
        (None, Usage(7, 3, 5), 10),
        (None, Usage(7, 3, 5, 40), 50),
        (None, Usage(None, 3), 103),
        (None, Usage(), 200),
        (SERVER_ERROR, Usage(), 0),
        (LEFT, Usage(), 200),
        (LEFT, Usage(7, 3), 200),
    ],
)
def test_client_that_leaves_pays_its_estimate_at_least(failure: Failure | None, usage: Usage, used: int) -> None:
    made = attempted(failure=failure, usage=usage)
    assert quotas(tokens_per_minute=1000).reserve(made) is None
    assert isinstance(made.reservation, Reservation)
    assert used_tokens(made, made.reservation) == used
