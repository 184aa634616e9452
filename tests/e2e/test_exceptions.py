"""The exception of the official SDKs that each failure becomes, and the number of requests it costs upstream."""

from __future__ import annotations

from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.e2e.stand import MAX_ATTEMPTS, SAID, Stand, standing

NEAR_MODELS = """
  gpt-4-turbo: {deployments: [{upstream: openai}]}
  gpt-4o: {deployments: [{upstream: openai}]}
  claude-3-opus: {deployments: [{upstream: anthropic}]}
"""


async def test_unknown_model_is_not_found_and_the_message_names_near_ones() -> None:
    async with (
        standing(models=NEAR_MODELS) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as openai,
        AsyncAnthropic(base_url=stand.url, api_key="k", max_retries=0) as anthropic,
    ):
        with pytest.raises(openai_sdk.NotFoundError, match=r"'gpt-4-turbp'.*similar names: gpt-4-turbo") as caught:
            await openai.chat.completions.create(model="gpt-4-turbp", messages=SAID)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert caught.value.response.headers["x-llm-guard-refused-by"] == "route"
        with pytest.raises(anthropic_sdk.NotFoundError, match="similar names: claude-3-opus") as other:
            await anthropic.messages.create(model="claude-3-opuss", max_tokens=9, messages=SAID)
        body: Any = other.value.body
        assert body["error"]["type"] == "not_found_error"
        assert body["request_id"] == other.value.response.headers["x-llm-guard-request-id"]
        assert stand.upstream_requests == 0


async def test_model_of_the_other_dialect_is_a_bad_request(openai: AsyncOpenAI, stand: Stand) -> None:
    with pytest.raises(openai_sdk.BadRequestError, match="anthropic SDK"):
        await openai.chat.completions.create(model="claude-3-opus", messages=SAID)
    assert stand.upstream_requests == 0


async def test_key_that_the_gateway_does_not_know_is_an_authentication_error() -> None:
    async with (
        standing(keys=["sk-good"]) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="sk-bad", max_retries=0) as openai,
        AsyncAnthropic(base_url=stand.url, api_key="sk-bad", max_retries=0) as anthropic,
    ):
        with pytest.raises(openai_sdk.AuthenticationError) as caught:
            await openai.chat.completions.create(model="gpt-4o", messages=SAID)
        assert caught.value.response.headers["x-llm-guard-refused-by"] == "auth"
        with pytest.raises(anthropic_sdk.AuthenticationError):
            await anthropic.messages.create(model="claude-3-opus", max_tokens=9, messages=SAID)
        with pytest.raises(openai_sdk.AuthenticationError):
            await openai.models.list()
        assert stand.upstream_requests == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_rate_limit_that_lasts_is_a_rate_limit_error(openai: AsyncOpenAI, stand: Stand, stream: bool) -> None:
    with pytest.raises(openai_sdk.RateLimitError, match="Rate limit reached") as caught:
        await openai.chat.completions.create(model="gpt-4o+status:429", messages=SAID, stream=stream)
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.response.headers["x-llm-guard-attempts"] == str(MAX_ATTEMPTS)
    assert caught.value.request_id == "req_mock00000003"
    assert stand.upstream_requests == MAX_ATTEMPTS


async def test_overload_that_lasts_is_an_overloaded_error(anthropic: AsyncAnthropic, stand: Stand) -> None:
    with pytest.raises(anthropic_sdk.InternalServerError, match="Overloaded") as caught:
        await anthropic.messages.create(model="claude-3-opus+status:529", max_tokens=9, messages=SAID)
    assert caught.value.status_code == 529
    body: Any = caught.value.body
    assert body["error"]["type"] == "overloaded_error"
    assert stand.upstream_requests == MAX_ATTEMPTS


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_request_is_sent_once(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic, stand: Stand, stream: bool
) -> None:
    with pytest.raises(openai_sdk.BadRequestError) as caught:
        await openai.chat.completions.create(model="gpt-4o+status:400", messages=SAID, stream=stream)
    assert caught.value.code == "invalid_value"
    assert stand.upstream_requests == 1
    with pytest.raises(anthropic_sdk.BadRequestError):
        await anthropic.messages.create(model="claude-3+status:400", max_tokens=9, messages=SAID, stream=stream)
    assert stand.upstream_requests == 2


@pytest.mark.parametrize(
    ("status", "kind", "requests"),
    [
        (401, openai_sdk.AuthenticationError, 1),
        (403, openai_sdk.PermissionDeniedError, 1),
        (404, openai_sdk.NotFoundError, 1),
        (409, openai_sdk.ConflictError, MAX_ATTEMPTS),
        (422, openai_sdk.UnprocessableEntityError, 1),
        (500, openai_sdk.InternalServerError, MAX_ATTEMPTS),
        (503, openai_sdk.InternalServerError, MAX_ATTEMPTS),
        (504, openai_sdk.InternalServerError, MAX_ATTEMPTS),
    ],
)
async def test_providers_own_answer_reaches_the_sdk(
    openai: AsyncOpenAI, stand: Stand, status: int, kind: type[openai_sdk.APIStatusError], requests: int
) -> None:
    with pytest.raises(kind) as caught:
        await openai.chat.completions.create(model=f"gpt-4o+status:{status}", messages=SAID)
    assert caught.value.status_code == status
    assert caught.value.request_id == f"req_mock{requests:08d}"
    assert stand.upstream_requests == requests


@pytest.mark.parametrize("fault", ["reset", "close", "truncated"])
async def test_provider_error_without_details_is_an_internal_server_error(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic, stand: Stand, fault: str
) -> None:
    with pytest.raises(openai_sdk.InternalServerError, match=r"openai/gpt-\*: .*3 attempts") as caught:
        await openai.chat.completions.create(model=f"gpt-4o+{fault}", messages=SAID)
    assert caught.value.status_code == 502
    with pytest.raises(anthropic_sdk.InternalServerError, match=r"anthropic/claude-\*: ") as other:
        await anthropic.messages.create(model=f"claude-3+{fault}", max_tokens=9, messages=SAID)
    assert other.value.status_code == 502
    assert stand.upstream_requests == 2 * MAX_ATTEMPTS


async def test_error_event_in_place_of_the_first_token_is_the_exception_for_its_text(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic, stand: Stand
) -> None:
    with pytest.raises(openai_sdk.InternalServerError, match="The server had an error"):
        await openai.chat.completions.create(model="gpt-4o+error:0", messages=SAID, stream=True)
    with pytest.raises(anthropic_sdk.InternalServerError, match="Overloaded") as caught:
        await anthropic.messages.create(model="claude-3+error:0", max_tokens=9, messages=SAID, stream=True)
    body: Any = caught.value.body
    assert body["error"]["type"] == "overloaded_error"
    assert stand.upstream_requests == 2 * MAX_ATTEMPTS


@pytest.mark.parametrize("fault", ["status:500", "status:429", "status:409", "reset", "truncated"])
async def test_openai_sdk_does_not_retry_after_the_gateway_has_retried(stand: Stand, fault: str) -> None:
    async with AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=2) as client:
        with pytest.raises(openai_sdk.APIStatusError) as caught:
            await client.chat.completions.create(model=f"gpt-4o+{fault}", messages=SAID)
    assert caught.value.response.headers.get_list("x-should-retry") == ["false"]
    assert stand.upstream_requests == MAX_ATTEMPTS


@pytest.mark.parametrize("fault", ["status:529", "status:500", "reset", "error:0"])
async def test_anthropic_sdk_does_not_retry_after_the_gateway_has_retried(stand: Stand, fault: str) -> None:
    async with AsyncAnthropic(base_url=stand.url, api_key="k", max_retries=2) as client:
        with pytest.raises(anthropic_sdk.APIStatusError) as caught:
            await client.messages.create(model=f"claude-3+{fault}", max_tokens=9, messages=SAID, stream=True)
    # The mock sends "true" with a 529, as Anthropic does: only the gateway's value may remain.
    assert caught.value.response.headers.get_list("x-should-retry") == ["false"]
    assert stand.upstream_requests == MAX_ATTEMPTS
