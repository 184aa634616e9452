from __future__ import annotations

import pytest

from llm_guard.dialects import ENDPOINT_DIALECTS, dialect_of

ALL_HEADERS = frozenset({"anthropic-version", "x-api-key"})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses/r_1", "/v1/embeddings"])
def test_path_of_openai_alone_is_openai_for_any_headers(path: str) -> None:
    assert dialect_of(path, ALL_HEADERS) == "openai"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/complete"])
def test_path_of_anthropic_alone_is_anthropic_for_any_headers(path: str) -> None:
    assert dialect_of(path, {"authorization"}) == "anthropic"


@pytest.mark.parametrize(
    ("headers", "dialect"),
    [
        ({"anthropic-version", "x-api-key"}, "anthropic"),
        ({"anthropic-version", "authorization"}, "anthropic"),
        ({"x-api-key"}, "anthropic"),
        ({"x-api-key", "authorization"}, "openai"),
        ({"authorization"}, "openai"),
        (set(), "openai"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/elsewhere"])
def test_shared_path_is_distinguished_by_its_headers(path: str, headers: set[str], dialect: str) -> None:
    assert dialect_of(path, headers) == dialect


@pytest.mark.parametrize("headers", [set(), ALL_HEADERS, {"authorization"}])
def test_table_of_endpoints_agrees_whatever_the_headers(headers: set[str]) -> None:
    assert {"/v1/chat/completions", "/v1/messages", "/v1/complete", "/v1/completions"} <= ENDPOINT_DIALECTS.keys()
    assert {path: dialect_of(path, headers) for path in ENDPOINT_DIALECTS} == ENDPOINT_DIALECTS
