from __future__ import annotations

import pytest

from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.resilience.retry.limits import Repeatable, may_have_executed

BUILT_IN = Repeatable({})

MODEL_CALLS = [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/embeddings",
    "/v1/moderations", "/v1/rerank", "/v1/images/generations", "/v1/images/edits", "/v1/images/variations",
    "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/complete",
]  # fmt: skip
CHANGES = [
    "/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/fine_tuning/jobs", "/v1/responses/resp_1/cancel",
    "/v1/uploads", "/v1/uploads/upload_1/parts", "/v1/vector_stores", "/v1/assistants", "/v1/threads/runs",
    "/v1/conversations", "/v1/videos", "/v1/evals", "/v1/chat/completions/chatcmpl-1", "/v1/unheard/of", "/v1/images",
    "/v1/", "/",
]  # fmt: skip


@pytest.mark.parametrize("path", MODEL_CALLS)
def test_model_call_may_be_repeated(path: str) -> None:
    assert BUILT_IN.allows("POST", path, is_stateful=False)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", CHANGES)
def test_call_that_changes_state_at_the_provider_may_not(method: str, path: str) -> None:
    assert not BUILT_IN.allows(method, path, is_stateful=False)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", [*MODEL_CALLS, *CHANGES])
def test_reading_may_always_be_repeated(method: str, path: str) -> None:
    assert BUILT_IN.allows(method, path, is_stateful=False)


def test_call_whose_state_a_provider_stores_may_not_be_repeated() -> None:
    assert not BUILT_IN.allows("POST", "/v1/responses", is_stateful=True)


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/V1/chat/completions", "/v1//chat/completions", "/v1/chat"])
def test_path_that_is_only_similar_to_a_known_one_may_not_be_repeated(path: str) -> None:
    assert not BUILT_IN.allows("POST", path, is_stateful=False)


# overrides


def test_override_outranks_the_built_in_rules_in_both_directions() -> None:
    chosen = Repeatable({"/v1/batches": True, "/v1/embeddings": False})
    assert chosen.allows("POST", "/v1/batches", is_stateful=False)
    assert not chosen.allows("POST", "/v1/embeddings", is_stateful=False)
    assert not chosen.allows("POST", "/v1/batches/batch_1/cancel", is_stateful=False)
    assert chosen.allows("POST", "/v1/chat/completions", is_stateful=False)
    assert not chosen.allows("POST", "/v1/files", is_stateful=False)


def test_override_applies_to_stateful_and_read_calls_too() -> None:
    chosen = Repeatable({"/v1/responses": True, "/v1/models": False})
    assert chosen.allows("POST", "/v1/responses", is_stateful=True)
    assert not chosen.allows("GET", "/v1/models", is_stateful=False)


def test_longest_of_several_overrides_wins_and_an_exact_one_before_all() -> None:
    chosen = Repeatable({"/v1/*": True, "/v1/files/*": False, "/v1/files/exact*": True, "/v1/files/exact": False})
    assert chosen.allows("POST", "/v1/anything", is_stateful=False)
    assert not chosen.allows("POST", "/v1/files/file-1", is_stateful=False)
    assert chosen.allows("POST", "/v1/files/exactly", is_stateful=False)
    assert not chosen.allows("POST", "/v1/files/exact", is_stateful=False)


def test_beginning_of_a_path_is_meant_only_with_a_star() -> None:
    assert not Repeatable({"/v1/files": True}).allows("POST", "/v1/files/file-1", is_stateful=False)
    assert not Repeatable({"/v1/files/*": True}).allows("POST", "/v1/files", is_stateful=False)


# failures

DOOR = {
    "rate_limit", "overloaded", "quota_exhausted", "model_loading", "auth", "permission", "model_not_found",
    "not_found", "payload_too_large", "invalid_request", "context_length", "content_policy",
}  # fmt: skip
AT_THE_DOOR = [kind for kind in FailureKind if kind.category in DOOR]
PERHAPS = [kind for kind in FailureKind if kind.category not in DOOR]


@pytest.mark.parametrize("kind", AT_THE_DOOR)
def test_refusal_in_place_of_an_execution_has_executed_nothing(kind: FailureKind) -> None:
    assert not may_have_executed(Failure(kind, "refused"))


@pytest.mark.parametrize("kind", PERHAPS)
def test_failure_that_leaves_it_open_may_have_executed_the_call(kind: FailureKind) -> None:
    assert may_have_executed(Failure(kind, "broken"))


def test_ambiguous_kinds_are_those_of_broken_and_silent_exchanges() -> None:
    assert {FailureKind.TIMEOUT, FailureKind.NETWORK, FailureKind.TRUNCATED, FailureKind.MALFORMED} < set(PERHAPS)
    assert {FailureKind.SERVER_ERROR, FailureKind.CONFLICT} < set(PERHAPS)


@pytest.mark.parametrize("kind", [FailureKind.NETWORK, FailureKind.TIMEOUT])
def test_failure_to_connect_has_executed_nothing(kind: FailureKind) -> None:
    assert not may_have_executed(Failure(kind, "no connection", is_before_sending=True))


def test_part_of_a_request_executes_nothing() -> None:
    for kind in PERHAPS:
        assert not may_have_executed(Failure(kind, "broken", is_incomplete=True))


@pytest.mark.parametrize(("status", "is_perhaps"), [(503, False), (500, True), (502, True), (504, True)])
def test_service_that_reports_itself_unavailable_has_executed_nothing(status: int, is_perhaps: bool) -> None:
    """OpenAI uses `server_error` for both; a 503 means that nothing was executed."""
    answer = UpstreamErrorResponse(status, "", (), b'{"error": {"type": "server_error"}}')
    assert may_have_executed(Failure(FailureKind.SERVER_ERROR, "answered", answer=answer)) == is_perhaps
    assert may_have_executed(Failure(FailureKind.NETWORK, "reset behind a proxy", answer=answer))
    assert may_have_executed(Failure(FailureKind.SERVER_ERROR, "event", answer=answer, is_after_head=True))


@pytest.mark.parametrize("kind", FailureKind)
def test_error_inside_a_begun_response_happens_after_the_execution(kind: FailureKind) -> None:
    assert may_have_executed(Failure(kind, "an error event", is_after_head=True))
