from __future__ import annotations

import json

import pytest

from llm_guard.mock.errors import error_reply, limit_reply, quota_reply
from llm_guard.mock.exchange import MockDialect
from llm_guard.mock.faults import STATUSES


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("status", STATUSES)
def test_every_status_has_a_body_in_each_dialect(dialect: MockDialect, status: int) -> None:
    reply = error_reply(dialect, status, "m-1")
    body = json.loads(reply.body)
    assert reply.status == status
    assert body["error"]["type"]
    assert "{" not in body["error"]["message"]
    assert (body.get("type") == "error") == (dialect == "anthropic")


def test_known_errors_have_the_codes_that_providers_send() -> None:
    assert json.loads(error_reply("openai", 404, "m-1").body)["error"]["code"] == "model_not_found"
    assert json.loads(error_reply("openai", 429, "m-1").body)["error"]["code"] == "rate_limit_exceeded"
    assert json.loads(error_reply("anthropic", 529, "m-1").body)["error"]["type"] == "overloaded_error"
    assert "m-1" in json.loads(error_reply("anthropic", 404, "m-1").body)["error"]["message"]


def test_retry_after_is_sent_as_requested() -> None:
    assert error_reply("openai", 503, "m", "soon").headers["retry-after"] == "soon"
    assert error_reply("openai", 429, "m", "90").headers["x-ratelimit-reset-requests"] == "1m30s"
    assert "retry-after" not in error_reply("openai", 429, "m").headers


def test_limit_has_the_wait_in_the_formats_of_openai() -> None:
    headers = limit_reply("openai", "m", rate_per_s=2.0, wait_s=0.4).headers
    assert headers["retry-after"] == "1"
    assert headers["retry-after-ms"] == "400"
    assert headers["x-ratelimit-limit-requests"] == "120"
    assert headers["x-ratelimit-reset-requests"] == "400ms"


def test_limit_has_an_instant_for_anthropic_clients() -> None:
    headers = limit_reply("anthropic", "m", rate_per_s=2.0, wait_s=3.2).headers
    assert headers["retry-after"] == "4"
    assert headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert "retry-after-ms" not in headers


def test_bare_limit_has_no_retry_after() -> None:
    for dialect in ("openai", "anthropic"):
        reply = limit_reply(dialect, "m", rate_per_s=2.0, wait_s=0.4, is_bare=True)
        assert (reply.status, reply.headers) == (429, {})
        assert b"try again" not in reply.body
        assert json.loads(reply.body)["error"]["type"] in ("requests", "rate_limit_error")


def test_spent_quota_is_reported_in_the_format_of_each_provider() -> None:
    openai, anthropic = quota_reply("openai"), quota_reply("anthropic")
    assert (openai.status, json.loads(openai.body)["error"]["code"]) == (429, "insufficient_quota")
    assert (anthropic.status, json.loads(anthropic.body)["error"]["type"]) == (400, "invalid_request_error")
    assert "credit balance is too low" in json.loads(anthropic.body)["error"]["message"]
