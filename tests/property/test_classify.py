from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_guard.outcome import FailureKind
from llm_guard.resilience.classification.classify import classify_answer, classify_event
from tests.effort import repeated

WALL = 1_800_000_000.0

words = st.sampled_from([
    "429", "503", "timeout", "insufficient_quota", "rate_limit_exceeded", "overloaded_error", "context_length_exceeded",
    "invalid_api_key", "model_not_found", "error", "req_429503", "sk-...429", "try again in 20s",
])  # fmt: skip
codes = st.sampled_from([None, "insufficient_quota", "rate_limit_exceeded", "server_error", "unheard_of", 429, "429"])
types = st.sampled_from([None, "invalid_request_error", "overloaded_error", "api_error", "unheard_of", ""])
statuses = st.integers(400, 599)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "code", "type", "response", "message"]), inner, max_size=4)
    ),
    max_leaves=10,
)
bodies = st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode())
hints = (
    st.text(max_size=30)
    | st.floats().map(str)
    | st.integers().map(str)
    | st.lists(
        st.sampled_from(
            ["Fri,", "15", "Jan", "2027", "08:00:30", "GMT", "-0000", "+9999", "1", "99999", ":", "-", ","]
        ),
        max_size=7,
    ).map(" ".join)
)
headers = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "x-ms-retry-after-ms", "date"]), hints, max_size=4
)


@settings(max_examples=repeated(500), deadline=None)
@given(status=statuses, headers=headers, body=bodies)
@example(400, {"retry-after": "1e308", "date": "x"}, b'{"error": {"code": 1e400}}')
def test_every_answer_has_a_meaning(status: int, headers: dict[str, str], body: bytes) -> None:
    verdict = classify_answer(status, headers, body, WALL)
    assert isinstance(verdict.kind, FailureKind)
    assert verdict.status == status
    assert verdict.why
    hint = verdict.retry_after_s
    assert hint is None or (hint > 0 and math.isfinite(hint))


@settings(max_examples=repeated(300), deadline=None)
@given(data=bodies)
def test_every_error_event_has_a_meaning(data: bytes) -> None:
    verdict = classify_event(data)
    assert isinstance(verdict.kind, FailureKind)
    assert 400 <= verdict.status <= 599


def error_of(code: object, kind: object, message: str, request_id: str, prompt: str) -> dict[str, Any]:
    error = {"message": message, "type": kind, "code": code, "param": None, "request_id": request_id}
    return {"error": error, "request_id": request_id, "input": prompt, "meta": {"code": prompt, "type": prompt}}


def shuffled(value: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """Returns the same object with its keys, and those of its error, in another order."""
    pairs = [(key, shuffled(each, order) if isinstance(each, dict) else each) for key, each in value.items()]
    ranks = [order[number % len(order)] for number in range(len(pairs))]
    return dict(pair for _, pair in sorted(zip(ranks, pairs, strict=True), key=lambda ranked: ranked[0]))


@settings(max_examples=repeated(200), deadline=None)
@given(
    status=statuses, code=codes, kind=types, message=words, request_id=words, prompt=words,
    order=st.permutations(range(6)),
)  # fmt: skip
def test_order_of_keys_changes_nothing(
    status: int, code: object, kind: object, message: str, request_id: str, prompt: str, order: list[int]
) -> None:
    said = error_of(code, kind, message, request_id, prompt)
    other = shuffled(said, order)
    assert other == said
    written, rewritten = json.dumps(said).encode(), json.dumps(other, indent=1).encode()
    assert classify_answer(status, {}, written, WALL) == classify_answer(status, {}, rewritten, WALL)
    assert classify_event(written) == classify_event(rewritten)


@settings(max_examples=repeated(200), deadline=None)
@given(status=statuses, code=codes, kind=types, request_id=words, prompt=words)
def test_terms_planted_in_ids_and_prompts_change_nothing(
    status: int, code: object, kind: object, request_id: str, prompt: str
) -> None:
    planted = json.dumps(error_of(code, kind, "it failed", request_id, prompt)).encode()
    plain = json.dumps(error_of(code, kind, "it failed", "", "")).encode()
    assert classify_answer(status, {"x-request-id": request_id}, planted, WALL) == classify_answer(
        status, {}, plain, WALL
    )
    assert classify_event(planted) == classify_event(plain)
