"""The official SDK's own clients for the clouds write the same requests."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AnthropicBedrock, AnthropicVertex

from llm_guard.dialects import FormName
from llm_guard.dialects.forms import FORMS
from llm_guard.dialects.forms.request_form import FormError

SAID: Any = [{"role": "user", "content": "grüße"}]
MODELS = [
    "claude-sonnet-4-5@20250929", "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "arn:aws:bedrock:us-east-1:1:application-inference-profile/x", "ä b",
]  # fmt: skip


class Recorder:
    """A transport that keeps the last request."""

    def __init__(self) -> None:
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] = {}
        self.http = httpx2.Client(transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.path, self.body = request.url.raw_path.decode(), json.loads(request.content)
        self.headers = dict(request.headers)
        return httpx2.Response(500, json={})

    def client(self, form: FormName) -> Any:
        if form == "vertex":
            return AnthropicVertex(
                access_token="k", project_id="p", region="us-east5", base_url="http://cloud.test/v1",
                http_client=self.http, max_retries=0,
            )  # fmt: skip
        return AnthropicBedrock(
            api_key="k", aws_region="us-east-1", base_url="http://cloud.test", http_client=self.http, max_retries=0
        )


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a body without its version, which in the SDK is its own, and without a stream that is off."""
    assert body.pop("anthropic_version")
    return {name: value for name, value in body.items() if (name, value) != ("stream", False)}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("form", "model"), [("vertex", MODELS[0]), *(("bedrock-invoke", model) for model in MODELS)])
def test_requests_are_those_of_the_sdk(form: FormName, stream: bool, model: str) -> None:
    recorder, fields = Recorder(), {"model": model, "messages": SAID, "max_tokens": 9, "stream": stream}
    with pytest.raises(anthropic.InternalServerError):
        recorder.client(form).beta.messages.create(**fields, betas=["one", "two"])
    headers = [("Authorization", "Bearer k"), ("anthropic-version", "1"), ("anthropic-beta", "one,two")]
    ours = FORMS[form].request("/v1/messages", headers, json.dumps(fields).encode(), None)
    assert recorder.path.removeprefix("/v1/projects/p/locations/us-east5") == ours.path
    assert plain(recorder.body) == plain(json.loads(ours.body))
    sent = {name.lower(): value for name, value in ours.headers}
    assert recorder.headers["authorization"] == sent["authorization"]
    assert "anthropic-version" not in {*recorder.headers, *sent}
    assert form != "vertex" or recorder.headers["anthropic-beta"] == sent["anthropic-beta"]


def test_token_count_is_that_of_the_sdk() -> None:
    recorder = Recorder()
    with pytest.raises(anthropic.InternalServerError):
        recorder.client("vertex").messages.count_tokens(model="claude@1", messages=SAID)
    body = json.dumps({"model": "claude@1", "messages": SAID}).encode()
    ours = FORMS["vertex"].request("/v1/messages/count_tokens", [], body, None)
    assert recorder.path.endswith(ours.path)
    assert plain(recorder.body) == plain(json.loads(ours.body))


@pytest.mark.parametrize("model", ["", ".", "..", "..;a=b", ";a"])
def test_models_that_the_sdk_refuses_are_refused(model: str) -> None:
    with pytest.raises(ValueError, match=r"model|Constructed path"):
        Recorder().client("bedrock-invoke").messages.create(model=model, messages=SAID, max_tokens=9)
    with pytest.raises(FormError):
        FORMS["bedrock-invoke"].request("/v1/messages", [], json.dumps({"model": model}).encode(), None)
