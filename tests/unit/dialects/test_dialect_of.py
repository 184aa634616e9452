from __future__ import annotations

import pytest

from llm_guard.dialects import dialect_of


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses/r_1", "/v1/embeddings"])
def test_path_of_openai_alone_is_openai_for_any_headers(path: str) -> None:
    assert dialect_of(path, has_anthropic_version=True, has_x_api_key=True, has_bearer=False) == "openai"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/complete"])
def test_path_of_anthropic_alone_is_anthropic_for_any_headers(path: str) -> None:
    assert dialect_of(path, has_anthropic_version=False, has_x_api_key=False, has_bearer=True) == "anthropic"


@pytest.mark.parametrize(
    ("version", "x_api_key", "bearer", "dialect"),
    [
        (True, True, False, "anthropic"),
        (True, False, True, "anthropic"),
        (False, True, False, "anthropic"),
        (False, True, True, "openai"),
        (False, False, True, "openai"),
        (False, False, False, "openai"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/elsewhere"])
def test_shared_path_is_distinguished_by_its_headers(
    path: str, version: bool, x_api_key: bool, bearer: bool, dialect: str
) -> None:
    assert dialect_of(path, has_anthropic_version=version, has_x_api_key=x_api_key, has_bearer=bearer) == dialect
