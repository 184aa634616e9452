"""Which headers of a caller could present credentials to a cloud."""

from __future__ import annotations

import pytest

from llm_guard.upstreams.credentials.bearer import without_credentials


@pytest.mark.parametrize("name", [
    "Authorization", "x-api-key", "API-Key", "Cookie", "X-Amz-Security-Token", "x-goog-user-project",
    "Ocp-Apim-Subscription-Key",
])  # fmt: skip
def test_credentials_of_a_caller_are_left_out(name: str) -> None:
    kept = [("Content-Type", "a"), ("X-Amzn-Bedrock-Trace", "ENABLED"), ("x-ms-client-request-id", "1")]
    assert without_credentials([*kept, (name, "secret")]) == kept
